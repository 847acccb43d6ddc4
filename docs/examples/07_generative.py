# %% [markdown]
# # A generative network
#
# Nothing in predictive coding says which end of a network is the image and which is the
# label. In this example the label is the input and the image is the output. The network
# learns to *draw* digits. Then you run it in reverse: give it an image, leave the label
# free, and infer it.
#
# What you will see: the same training step as for reading, with its ends swapped, and a
# label that emerges during inference.

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
EPOCHS = 5 if SMALL else 30

digits = jpc.data.load("digits", flatten=True, normalise=False)
(images, labels), (test_images, test_labels) = digits.train, digits.test

# %% [markdown]
# ## Training
#
# The data are pairs of an input and an output. Here they are `(labels, images)`; labels
# become one-hot vectors. Everything else is as in [reading digits](02_discriminative.py).

# %%
model = jpc.make_mlp(jax.random.key(0), 10, 64, 3, 64, "tanh", use_bias=True)
optim = optax.adam(1e-3)
opt_state = optim.init(eqx.filter(model, eqx.is_array))
fitted = jpc.fit(
    functools.partial(jpc.make_pc_step, inference=jpc.Descent(0.1, 30)),
    dict(model=model, optim=optim, opt_state=opt_state),
    (labels, images),
    epochs=EPOCHS,
    batch_size=32,
    key=jax.random.key(1),
    progress=False,
)
model, history = fitted.state["model"], fitted.history
first, last = history[0]["loss"], history[-1]["loss"]
print(f"loss of an image: {first:.2f} in the first epoch, {last:.2f} in the last")

# %% [markdown]
# ## Drawing
#
# Run the network forwards, once for each label.

# %%
drawn = jpc.feedforward_batch(model, jnp.eye(10))[-1]

figure, axes = plt.subplots(1, 10, figsize=(7.5, 1.1), layout="constrained")
for i, axis in enumerate(axes):
    axis.imshow(np.reshape(drawn[i], (8, 8)), cmap="gray_r", vmin=0, vmax=1)
    axis.set_title(str(i), fontsize=9)
    axis.axis("off")
plt.show()

# %% [markdown]
# These are clear digits, if a bit blurred. A forward pass gives one picture for each
# label, and the best single picture is the mean of all images with that label. Let us
# check that.

# %%
means = np.stack([images[labels == i].mean(axis=0) for i in range(10)])
away = np.mean((np.asarray(drawn) - means) ** 2)
spread = np.mean((images - means[labels]) ** 2)
print(f"from the mean of the label: drawings {away:.4f}, real images {spread:.4f}")

# %% [markdown]
# ## Reading by inference
#
# Now the other way. Clamp an image at the output and leave the input free: `jpc.clamp`
# without an input. The label starts with all ten units equal, and inference goes down the
# energy. `jpc.Record` keeps the input on the way.


# %%
@functools.partial(jax.jit, static_argnames="steps")
def read(image, steps=200):
    """The labels that inference goes through, [time, image, label]."""
    label = jnp.full((len(image), 10), 0.1)
    states = [label, *jpc.feedforward_batch(model, label)[:-1]]
    nodes, clamps = jpc.clamp(states, image)
    record = jpc.Record(lambda params, nodes, clamps: nodes[0], length=steps)
    inferred = jpc.Descent(0.1, steps)(
        jpc.PCEnergy(), model, nodes, clamps, record=record
    )
    return inferred.trajectory.values


way = read(jnp.asarray(test_images))
right = np.argmax(way, axis=2) == test_labels
for steps in (0, 10, 200):
    print(f"after {steps:3d} steps {100 * right[steps].mean():.1f} % are read rightly")

# %%
which = 13  # Another image? Change it.
figure, (one, every) = plt.subplots(1, 2, figsize=(7.5, 3), layout="constrained")
for i in range(10):
    chosen = i == test_labels[which]
    one.plot(
        way[:, which, i], color="#c44e52" if chosen else "#bbbbbb", zorder=2 + chosen
    )
one.set(xlabel="steps of inference", ylabel="the ten units of the label")
one.set_title(f"an image of a {test_labels[which]}", fontsize=10)
every.plot(100 * right.mean(axis=1), color="#4c72b0")
every.set(
    xlabel="steps of inference", ylabel="test images read rightly, %", ylim=(0, 100)
)
plt.show()

# %% [markdown]
# On the left is one image. All ten units of the label start equal; the right one (red)
# comes out on top. On the right is how many test images are read correctly so far. Nobody
# trained this network to read: it looks for the label that would have drawn the image.
#
# ## What to try next
#
# - Draw between two digits: run the network forwards from half a 3 and half an 8.
# - Give the network an image of noise. What does it read, and how large is the energy
#   that is left?
# - [Unsupervised learning and sampling](08_monte_carlo.py) learns without labels, and
#   draws many different digits.
