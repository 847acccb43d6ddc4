# %% [markdown]
# # A graph with two senses
#
# A predictive coding network does not have to be a chain. In this example one hidden
# cause predicts two things: what a digit looks like, and what it is called. The network
# is trained on both together. Afterwards you give it any part of them, and it infers the
# rest.
#
# What you will see: one network that, without any change, reads pictures, draws words,
# and completes pictures when half of them is hidden.

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
EPOCHS = 4 if SMALL else 25

digits = jpc.data.load("digits", flatten=True, normalise=False)
images, labels = digits.train
words = np.eye(10)[labels]

# %% [markdown]
# ## The graph
#
# `GraphEnergy` says for each state what predicts it. Nothing predicts the cause. A
# precision of its own keeps it close to zero, as a prior does. The precisions of the
# senses say how far a prediction may be off. Weight decay keeps the network from learning
# the training images by heart.

# %%
CAUSES, HIDDEN = 12, 64
energy = jpc.GraphEnergy(
    {"sight": ["cause"], "word": ["cause"]},
    precision={"cause": 1.0, "sight": 10.0, "word": 10.0},
) + jpc.WeightDecay(0.3)
keys = jax.random.split(jax.random.key(0), 2)
params = {
    "sight": eqx.nn.MLP(CAUSES, 64, HIDDEN, 1, jnp.tanh, key=keys[0]),
    "word": eqx.nn.MLP(CAUSES, 10, HIDDEN, 1, jnp.tanh, key=keys[1]),
}

# %% [markdown]
# ## Training on both senses
#
# `jpc.pose` says what is given, and where the rest starts. Both senses are given, so only
# the cause is inferred. `jpc.make_step` makes a step of training from an energy, a method
# and this function.


# %%
def pose(params, output, input, key):
    start = {"cause": jnp.zeros((len(output["sight"]), CAUSES))}
    return jpc.pose(energy, params, output, start=start)


infer = jpc.Descent(optax.adam(0.1), 40, throw=False)
optim = optax.adam(3e-3)
opt_state = optim.init(eqx.filter(params, eqx.is_array))
fitted = jpc.fit(
    functools.partial(jpc.make_step, energy=energy, inference=infer, pose=pose),
    dict(params=params, optim=optim, opt_state=opt_state),
    (None, {"sight": images, "word": words}),
    epochs=EPOCHS,
    batch_size=64,
    key=jax.random.key(1),
    metrics=("energy",),
    progress=False,
)
params = fitted.state["params"]
energies = [record["energy"] for record in fitted.history]
print(
    f"energy after the first epoch {energies[0]:.2f}, after the last {energies[-1]:.2f}"
)

# %% [markdown]
# ## Ask it anything
#
# Now give the network a part, and infer the rest. What is not given is free, and ends at
# its prediction.


# %%
@eqx.filter_jit
def ask(given, masks=None):
    """All states, with those that are not given inferred."""
    size = len(jax.tree.leaves(given)[0])
    start = {"cause": jnp.zeros((size, CAUSES))}
    nodes, clamps = jpc.pose(energy, params, given, start=start, masks=masks)
    inferred = jpc.Descent(optax.adam(0.05), 300)(energy, params, nodes, clamps)
    return jpc.states(inferred.nodes, clamps)


pictures, names = jnp.asarray(digits.test[0]), digits.test[1]


def score(states):
    return 100 * np.mean(np.argmax(states["word"], axis=1) == names)


seen = ask({"sight": pictures})
print(f"the word from a whole picture: {score(seen):.1f} % are right")

# %% [markdown]
# A picture alone gives the word, for images that the network has never seen. Now the
# other way round: a word alone gives a picture.

# %%
drawn = ask({"word": jnp.eye(10)})["sight"]

figure, axes = plt.subplots(1, 10, figsize=(7.5, 1.1), layout="constrained")
for i, axis in enumerate(axes):
    axis.imshow(np.reshape(drawn[i], (8, 8)), cmap="gray_r", vmin=0, vmax=1)
    axis.set_title(f"“{i}”", fontsize=9)
    axis.axis("off")
plt.show()

# %% [markdown]
# You should be able to read them. They are typical digits: what the network has in mind
# for each word.
#
# ## Half a picture
#
# A mask says which pixels are given. We hide the lower half, and ask twice: once with the
# half picture alone, and once with the word as well.

# %%
upper = jnp.broadcast_to(jnp.arange(64) < 32, pictures.shape)
half = ask({"sight": pictures}, masks={"sight": upper})
told = ask({"sight": pictures, "word": jnp.eye(10)[names]}, masks={"sight": upper})


def wrong(states):
    """The mean squared error of the hidden pixels."""
    return float(jnp.mean((states["sight"] - pictures)[:, 32:] ** 2))


guess = float(jnp.mean((jnp.asarray(images.mean(axis=0)) - pictures)[:, 32:] ** 2))
print(f"the word from half a picture: {score(half):.1f} % are right")
print("error of a hidden pixel:")
print(f"  the mean image        {guess:.4f}")
print(f"  half a picture        {wrong(half):.4f}")
print(f"  and the word          {wrong(told):.4f}")

# %%
rows = {
    "whole": pictures,
    "given": jnp.where(upper, pictures, 0.5),
    "completed": half["sight"],
    "with the word": told["sight"],
}
figure, axes = plt.subplots(4, 10, figsize=(7.5, 3.2), layout="constrained")
for line, (title, row) in zip(axes, rows.items()):
    for axis, picture in zip(line, row):
        axis.imshow(np.reshape(picture, (8, 8)), cmap="gray_r", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[], frame_on=False)
    line[0].set_ylabel(title, fontsize=8, rotation=0, ha="right", va="center")
plt.show()

# %% [markdown]
# Compare the last two rows with the first. The network invents the lower halves, and they
# fit. Where the upper half could belong to several digits, the word decides.
# That is what two senses are for.
#
# ## What to try next
#
# - Give a word that contradicts the picture. Which of them wins? Change the precisions,
#   and ask again.
# - Leave out the words in half of the training data with a mask (`jpc.Masked`). How many
#   words does the network need?
# - [Networks, masks, precisions](../docs/networks.md) has more graphs: several inputs,
#   edges past layers, exact inference.
