# %% [markdown]
# # Reading digits
#
# In this example a network learns to read handwritten digits with predictive coding. You
# build it, take one step of training and look inside, and then let `jpc.fit` do whole
# epochs.
#
# What you will see: a step is inference, then learning. Over training there is less and
# less error to spread.

# %%
import functools
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jpc
import jpc.data

SMALL = "JPC_SMALL" in os.environ  # The tests run this file with fewer epochs.
EPOCHS = 2 if SMALL else 15

digits = jpc.data.load("digits", flatten=True)
images, labels = digits.train
print("images", images.shape, "labels", labels.shape)

# %% [markdown]
# ## A model is a list of layers
#
# A layer is any callable on one example. `make_mlp` makes the usual ones. This network
# has 64 pixels as its input, two hidden layers of 128 units, and ten outputs.

# %%
model = jpc.make_mlp(jax.random.key(0), 64, 128, 3, 10, "tanh")
optim = optax.adam(1e-3)
opt_state = optim.init(eqx.filter(model, eqx.is_array))
states = jpc.feedforward_batch(model, images[:3])
print("the states of three images:", [z.shape for z in states])

# %% [markdown]
# ## One step
#
# `make_pc_step` clamps the images at the input and the labels at the output. It infers
# the states in between, and then changes the weights. Inference here is a gradient flow:
# it follows the slope of the energy for a time of 20. With `record_energies=True` the
# step keeps the energy of each layer on the way.

# %%
x, y = images[:64], jax.nn.one_hot(labels[:64], 10)
options = dict(
    inference=jpc.GradientFlow(t1=20.0), record_energies=True, record_every=0.5
)
step = jpc.make_pc_step(model, optim, opt_state, y, x, **options)
before = step["energies"][:, : step["t_max"]]  # A row for each layer, over time.
total = before.sum(axis=0)
print(f"energy {total[0]:.3f} before inference, {total[-1]:.3f} after it")

# %% [markdown]
# The step returns a new model and a new state of the optimiser, so a loop over batches
# trains the network. The next section leaves that loop to `jpc.fit`.
#
# ## Whole epochs
#
# `fit` shuffles the data, takes a step for each batch, and evaluates a test set after
# each epoch. All of it is compiled. Options of the step go in with `functools.partial`.
# Here `jpc.Equilibrium` solves for the end of inference instead of following a flow. Two
# of its iterations are enough for training. The output gets a precision of 0.1: its error
# counts a tenth, so the states stay close to the forward pass.

# %%
fitted = jpc.fit(
    functools.partial(
        jpc.make_pc_step,
        inference=jpc.Equilibrium(chords=2, max_steps=0),
        output_energy_scaling=0.1,
    ),
    dict(model=model, optim=optim, opt_state=opt_state),
    digits.train,
    epochs=EPOCHS,
    batch_size=64,
    key=jax.random.key(1),
    test=digits.test,
    evaluate=jpc.evaluate_discriminative,
    progress=False,
)
trained, history = fitted.state["model"], fitted.history
print("what is known of an epoch:", ", ".join(history[-1]))

# %%
accuracies = [record["test_acc"] for record in history]
print(f"after {EPOCHS} epochs: {accuracies[-1]:.1f} % of the test images are right")

plt.figure(figsize=(5, 3), layout="constrained")
plt.plot(range(1, EPOCHS + 1), accuracies, "o-", color="#4c72b0")
plt.xlabel("epochs")
plt.ylabel("test accuracy, %")
plt.show()

# %% [markdown]
# The curve rises fast and then flattens: the network learns most in the first epochs.
#
# ## Less error to spread
#
# Here is inference again on the same batch, before and after training.

# %%
step = jpc.make_pc_step(trained, optim, opt_state, y, x, **options)
after = step["energies"][:, : step["t_max"]]
names, colours = ["layer 1", "layer 2", "output"], ["#8fabd3", "#4c72b0", "#c44e52"]
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3), sharey=True, layout="constrained")
for axis, energies, title in zip(axes, (before, after), ("before training", "after it")):
    axis.stackplot(
        0.5 * np.arange(energies.shape[1]), energies, colors=colours, labels=names
    )
    axis.set(xlabel="time of inference", title=title)
axes[0].set_ylabel("energy")
axes[1].legend()
plt.show()

# %% [markdown]
# Compare the heights. Before training (left) the forward pass is wrong, and inference has
# a lot of error to share out. After training (right) the labels are nearly what the
# network predicts anyway.
#
# ## Using the network
#
# A trained network is a function: run it forwards.

# %%
test_images, test_labels = digits.test
outputs = jpc.feedforward_batch(trained, jnp.asarray(test_images))[-1]
guesses = np.argmax(np.asarray(outputs), axis=1)
wrong = np.flatnonzero(guesses != test_labels)
print(f"{len(wrong)} of {len(guesses)} are wrong")

shown = np.concatenate([wrong[:4], np.flatnonzero(guesses == test_labels)[:4]])
pixels = digits.restore(test_images[shown]).reshape(-1, 8, 8)
figure, axes = plt.subplots(1, len(shown), figsize=(7.5, 1.4), layout="constrained")
for axis, picture, i in zip(axes, pixels, shown):
    axis.imshow(picture, cmap="gray_r")
    axis.set_title(f"{test_labels[i]}, read as {guesses[i]}", fontsize=8)
    axis.axis("off")
plt.show()

# %% [markdown]
# The first four are mistakes. Would you have read them?
#
# ## What to try next
#
# - Leave out `output_energy_scaling=0.1`. What happens to the last few points of
#   accuracy?
# - Put `inference=jpc.Backprop()` in the place of `jpc.Equilibrium(...)`: the same
#   network, trained with backpropagation.
# - [Exact inference against flows](03_exact_inference.py) shows what `Equilibrium` does.
#   [Training](../docs/training.md) has checkpoints, early stopping and data of your own.
