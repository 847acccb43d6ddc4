# %% [markdown]
# # Learning without labels, and dreaming up new images
#
# In this example nobody says what the images are. A network explains each of them by a
# few hidden causes, which it has to infer. To learn well it should not settle for the
# single best explanation. It should consider all plausible ones. That is Monte Carlo
# predictive coding.
#
# What you will see: two networks, one that learns from the best explanations and one that
# learns from samples. Both can reproduce images. Only one of them can make up new ones.

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
EPOCHS = 2 if SMALL else 25
LATENT = 8

digits = jpc.data.load("digits", flatten=True, normalise=False)
images = (digits.train[0] > 0.5).astype(np.float32)  # Black or white.
tests = (digits.test[0] > 0.5).astype(np.float32)

# %% [markdown]
# ## The model
#
# The model has eight hidden causes with a normal distribution, 64 hidden units, and 64
# pixels that are black or white. `jpc.bernoulli` is the loss of such pixels, and the prior
# is a term of the energy. The energy is minus the logarithm of a probability: states with
# a low energy are plausible.

# %%
energy = jpc.PCEnergy(jpc.bernoulli) + jpc.GaussianPrior(1.0)
layers = jpc.make_mlp(jax.random.key(0), LATENT, 64, 2, 64, "relu", use_bias=True)


def pose(params, output, input, key):
    """The image is given. The causes start at zero."""
    return jpc.pose(
        energy, params, {2: output}, start={0: jnp.zeros((len(output), LATENT))}
    )


# %% [markdown]
# ## Two ways to learn
#
# - **Peaks**: inference goes down to the best explanation, and the network learns from
#   that.
# - **Samples**: from there inference goes on with noise of the right size (Langevin
#   dynamics) and visits plausible explanations. The network learns from all of them.


# %%
def train(step):
    optim = optax.adam(3e-3)
    fitted = jpc.fit(
        functools.partial(step, energy=energy, pose=pose),
        dict(
            params=layers,
            optim=optim,
            opt_state=optim.init(eqx.filter(layers, eqx.is_array)),
        ),
        (None, images),
        epochs=EPOCHS,
        batch_size=64,
        key=jax.random.key(1),
        metrics=("energy",),
        progress=False,
    )
    return fitted.state["params"]


peak = jpc.Descent(0.1, 20, throw=False)
few = dict(warm=peak, sampler=jpc.Langevin(t1=2.0, dt=0.1), samples=5)
peaks = train(functools.partial(jpc.make_step, inference=peak))
samples = train(functools.partial(jpc.make_mcpc_step, **few))

# %% [markdown]
# ## Dreaming
#
# `jpc.sample` draws causes from the prior and goes forwards from there, with noise at
# each state.

# %%
SHOWN = 200
dreams = {}
for name, params in {
    "learned from samples": samples,
    "learned from peaks": peaks,
}.items():
    logits = jpc.sample(jax.random.key(2), params, (SHOWN, LATENT))
    dreams[name] = np.asarray(jax.nn.sigmoid(logits))

figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.8), layout="constrained")
for axis, (name, row) in zip(axes, {"real images": tests, **dreams}.items()):
    tiles = row[:36].reshape(6, 6, 8, 8).transpose(0, 2, 1, 3)
    axis.imshow(
        np.pad(tiles, [(0, 0), (1, 1), (0, 0), (1, 1)]).reshape(60, 60), cmap="gray_r"
    )
    axis.set_title(name, fontsize=10)
    axis.axis("off")
plt.show()

# %% [markdown]
# You should be able to read many of the dreams in the middle. On the right more shapes
# are no digits: this network only ever saw the best causes, and never learned which other
# causes are plausible.
#
# Can a number say the same? Take the distance from each dream to the nearest real image.


# %%
def nearest(pictures):
    """The mean distance to the nearest training image, in pixels that differ."""
    distances = pictures @ (1 - images.T) + (1 - pictures) @ images.T
    return float(distances.min(axis=1).mean())


away = {"new images": nearest(tests)} | {
    name: nearest((row > 0.5).astype(float)) for name, row in dreams.items()
}
away["random pixels"] = nearest(
    (np.random.default_rng(0).random((SHOWN, 64)) < images.mean()).astype(float)
)
for name, value in away.items():
    print(f"{name:22s} {value:4.1f} of 64 pixels from the nearest image")

# %% [markdown]
# ## How sure is it?
#
# Samples say more than a peak. Here is one image, explained again and again: for each
# pixel, the share of explanations in which it is likely to be black.

# %%
method = jpc.MonteCarlo(warm=peak, sampler=jpc.Langevin(t1=20.0, dt=0.1), samples=100)
given = jnp.asarray(tests[:6])
nodes, clamps = pose(samples, given, None, None)
found = method(energy, samples, nodes, clamps, key=jax.random.key(3))
hidden = found.trajectory.values[1]  # [samples, images, units]
chances = jax.nn.sigmoid(jax.vmap(jax.vmap(samples[1]))(hidden))
mean, deviation = np.mean(chances, axis=0), np.std(chances, axis=0)

figure, axes = plt.subplots(3, 6, figsize=(6, 3.2), layout="constrained")
for line, row, title in zip(
    axes, (given, mean, deviation), ("image", "mean", "deviation")
):
    for axis, picture in zip(line, row):
        most = 0.5 if title == "deviation" else 1
        axis.imshow(np.reshape(picture, (8, 8)), cmap="gray_r", vmin=0, vmax=most)
        axis.set(xticks=[], yticks=[], frame_on=False)
    line[0].set_ylabel(title, fontsize=9, rotation=0, ha="right", va="center")
plt.show()

# %% [markdown]
# The last row is dark where explanations disagree, and white where all of them agree.
#
# ## What to try next
#
# - Use `temperature=0.5` in `jpc.sample`. Dreams get clearer, and more alike.
# - Train for longer. Peaks get worse: their weights grow without bound.
# - [Monte Carlo predictive coding](../docs/variants/mcpc.md) scores both by the
#   likelihood of MNIST's test images.
