# %% [markdown]
# # One network, two directions
#
# A network that reads cannot draw, and one that draws reads slowly. In this example two
# chains of predictions share one set of states: one goes from the label down to the
# image, the other from the image up to the label. Both learn together. This is
# bidirectional predictive coding.
#
# What you will see: one network that reads a digit in a single sweep up, and draws one in
# a single sweep down.

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
EPOCHS = 3 if SMALL else 15
WEIGHTS = (1e-2,) if SMALL else (1e-3, 1e-2, 1e-1, 1.0)

digits = jpc.data.load("digits", flatten=True, normalise=False)
(images, labels), (test_images, test_labels) = digits.train, digits.test

# %% [markdown]
# ## Two models
#
# The states are $z_0$ (the label), $z_1$, $z_2$, and $z_3$ (the image). The top-down
# model predicts each state from the one before, and the bottom-up model from the one
# after. Both lists are in the order of the states, so the bottom-up network is reversed.

# %%
keys = jax.random.split(jax.random.key(0))
top_down = jpc.make_mlp(keys[0], 10, 64, 3, 64, "relu")
bottom_up = jpc.make_mlp(keys[1], 64, 64, 3, 10, "relu")[::-1]
optim = optax.adam(2e-3)

# %% [markdown]
# ## Training
#
# The energy has an error for each prediction in either direction. `forward_energy_weight`
# says how much the top-down errors count. There are many pixels and only one label, so a
# small weight keeps the pixels from drowning the label.


# %%
def train(weight):
    opt_states = [optim.init(eqx.filter(m, eqx.is_array)) for m in (top_down, bottom_up)]
    return jpc.fit(
        functools.partial(jpc.make_bpc_step, forward_energy_weight=weight),
        dict(
            top_down_model=top_down,
            bottom_up_model=bottom_up,
            optims=[optim, optim],
            opt_states=opt_states,
        ),
        (labels, images),
        epochs=EPOCHS,
        batch_size=32,
        key=jax.random.key(1),
        metrics=("losses",),
        test=(test_labels, test_images),
        evaluate=jpc.evaluate_bpc,
        progress=False,
    )


fitted = train(1e-2)
accuracies = [record["test_acc"] for record in fitted.history]
print(f"read rightly after {EPOCHS} epochs: {accuracies[-1]:.1f} % of the test images")

# %% [markdown]
# ## Down: drawing
#
# To draw, sweep down from each label.

# %%
drawn = jpc.feedforward_batch(fitted.state["top_down_model"], jnp.eye(10))[-1]

figure, axes = plt.subplots(1, 10, figsize=(7.5, 1.1), layout="constrained")
for i, axis in enumerate(axes):
    axis.imshow(np.reshape(drawn[i], (8, 8)), cmap="gray_r", vmin=0, vmax=1)
    axis.set_title(str(i), fontsize=9)
    axis.axis("off")
plt.show()

# %% [markdown]
# ## Up: reading
#
# To read, sweep up from an image: run the layers of the bottom-up model from the last to
# the first.

# %%
up = fitted.state["bottom_up_model"][::-1]
guesses = np.argmax(jpc.feedforward_batch(up, jnp.asarray(test_images))[-1], axis=1)
print(f"read by hand: {100 * np.mean(guesses == test_labels):.1f} %")

# %% [markdown]
# Now go there and back: read an image, and draw what was read.

# %%
read = jnp.eye(10)[guesses[:10]]
redrawn = jpc.feedforward_batch(fitted.state["top_down_model"], read)[-1]

figure, axes = plt.subplots(2, 10, figsize=(7.5, 1.8), layout="constrained")
for line, row, title in zip(axes, (test_images, redrawn), ("seen", "drawn")):
    for axis, picture in zip(line, row):
        axis.imshow(np.reshape(picture, (8, 8)), cmap="gray_r", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[], frame_on=False)
    line[0].set_ylabel(title, fontsize=9, rotation=0, ha="right", va="center")
plt.show()

# %% [markdown]
# In the lower row every digit has its standard shape. The network knows what was written,
# but not how.
#
# ## A trade-off
#
# How much should the drawing count?

# %%
runs = {weight: train(weight).history[-1] for weight in WEIGHTS}
for weight, last in runs.items():
    acc, error = last["test_acc"], last["test_loss"]
    print(f"weight {weight:5g}: {acc:.1f} % read rightly, error of a drawing {error:.2f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 2.8), layout="constrained")
left.semilogx(
    list(runs), [last["test_acc"] for last in runs.values()], "o-", color="#4c72b0"
)
left.set(xlabel="weight of the top-down errors", ylabel="read rightly, %")
right.semilogx(
    list(runs), [last["test_loss"] for last in runs.values()], "o-", color="#c44e52"
)
right.set(xlabel="weight of the top-down errors", ylabel="error of a drawing")
plt.show()

# %% [markdown]
# Read both plots together, and mind their axes: a larger weight makes the drawings a
# little better, and the reading worse.
#
# ## What to try next
#
# - Leave out most labels: `input_mask=` says which examples have one.
# - Make the network deeper, with 6 in the place of 3.
# - [Bidirectional predictive coding](../docs/variants/bpc.md) has the equations, and
#   measurements on MNIST.
