# %% [markdown]
# # Fast guesses, slow thoughts
#
# A generative network reads an image by inference: it looks for the label that would have
# drawn it. That takes many steps. A hybrid network has a second part, the **amortiser**,
# which guesses the answer at once. Inference then only has to correct the guess, and the
# amortiser learns from what inference found.
#
# What you will see: the guess is right nine times out of ten before inference has taken a
# single step.

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
EPOCHS = 4 if SMALL else 20

digits = jpc.data.load("digits", flatten=True, normalise=False)
(images, labels), (test_images, test_labels) = digits.train, digits.test

# %% [markdown]
# ## Two networks
#
# The generator goes from labels to images, and the amortiser goes from images to labels.
# Both have the same number of layers, so that there is a guess for each state of the
# generator.

# %%
keys = jax.random.split(jax.random.key(0))
generator = jpc.make_mlp(keys[0], 10, 64, 3, 64, "tanh", use_bias=True)
amortiser = jpc.make_mlp(keys[1], 64, 64, 3, 10, "tanh", use_bias=True)
optim = optax.adam(1e-3)

# %% [markdown]
# ## Training
#
# `make_hpc_step` does four things. The amortiser guesses the states. Inference goes on
# from there, with the image and the label given. The generator learns from its errors.
# And the amortiser learns to guess what was inferred.

# %%
fitted = jpc.fit(
    functools.partial(jpc.make_hpc_step, inference=jpc.Descent(0.1, 20)),
    dict(
        generator=generator,
        amortiser=amortiser,
        optims=[optim, optim],
        opt_states=[
            optim.init(eqx.filter(m, eqx.is_array)) for m in (generator, amortiser)
        ],
    ),
    (labels, images),
    epochs=EPOCHS,
    batch_size=32,
    key=jax.random.key(1),
    metrics=("losses",),
    progress=False,
)
generator, amortiser = fitted.state["generator"], fitted.state["amortiser"]

# %% [markdown]
# ## Reading in both ways
#
# For test images the label is not given. We infer it twice: once from the amortiser's
# guess, and once from a start that knows nothing, with all ten units of the label equal.
# `jpc.Record` keeps the label after each step.


# %%
def read(states, image, steps=100):
    """The labels that inference goes through, [time, image, label]."""
    nodes, clamps = jpc.clamp(states, image)
    record = jpc.Record(lambda params, nodes, clamps: nodes[0], length=steps)
    method = jpc.Descent(0.1, steps, throw=False)
    return method(
        jpc.PCEnergy(), generator, nodes, clamps, record=record
    ).trajectory.values


x = jnp.asarray(test_images)
guess = jpc.init_activities_with_amort(amortiser, generator, x)[:-1]
label = jnp.full((len(x), 10), 0.1)
nothing = [label, *jpc.feedforward_batch(generator, label)[:-1]]

curves = {}
for name, start in {"the amortiser's guess": guess, "nothing": nothing}.items():
    curves[name] = 100 * np.mean(np.argmax(read(start, x), axis=2) == test_labels, axis=1)
    at = ", ".join(f"{curves[name][t]:.1f} % after {t}" for t in (0, 5, 20, 100))
    print(f"from {name}: {at} steps")

# %%
plt.figure(figsize=(5.5, 3.2), layout="constrained")
for (name, curve), colour in zip(curves.items(), ["#c44e52", "#4c72b0"]):
    plt.plot(curve, color=colour, label=f"from {name}")
plt.xscale("symlog", linthresh=1)
plt.xticks([0, 1, 10, 100], [0, 1, 10, 100])
plt.xlabel("steps of inference")
plt.ylabel("test images read rightly, %")
plt.ylim(0, 100)
plt.legend(loc="lower right")
plt.show()

# %% [markdown]
# Look at the left edge. Without a single step the amortiser (red) is already right most
# of the time. From nothing (blue), inference needs some steps to get there. Given enough
# time, inference is the better reader of the two.
#
# ## Is the guess good for more than the label?
#
# The amortiser guesses all states, not only the label. How much energy is left for
# inference to remove?

# %%
energy = jpc.PCEnergy()
found = {}
for name, start in {"guess": guess, "nothing": nothing}.items():
    nodes, clamps = jpc.clamp(start, x)
    record = jpc.Record(energy.terms, length=100)
    way = jpc.Descent(0.1, 100, throw=False)(
        energy, generator, nodes, clamps, record=record
    )
    terms = jax.tree.leaves(way.trajectory.values)
    found[name] = sum(np.mean(term, axis=1) for term in terms)
    print(
        f"from {name:8s} energy {found[name][0]:.2f} at first, {found[name][-1]:.2f} at the end"
    )

plt.figure(figsize=(5.5, 3), layout="constrained")
plt.plot(found["guess"], color="#c44e52", label="from the guess")
plt.plot(found["nothing"], color="#4c72b0", label="from nothing")
plt.xlabel("steps of inference")
plt.ylabel("energy")
plt.ylim(0)
plt.legend()
plt.show()

# %% [markdown]
# The two begin at different energies, and end close to each other.
#
# ## What to try next
#
# - Train for one epoch only. Which of the two reads better then, the guess or inference?
# - Give the network a strange image, such as a digit upside down. Does inference change
#   the guess?
# - `jpc.test_hpc` measures all of this in one call. [Bidirectional
#   networks](10_bidirectional.py) are another way to have two directions.
