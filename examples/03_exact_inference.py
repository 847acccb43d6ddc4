# %% [markdown]
# # Exact inference against flows
#
# Inference in predictive coding ends at an equilibrium, where no state wants to move. You
# can walk there in small steps, or you can solve for it. In this example you do both and
# compare.
#
# What you will see: a flow gets closer and closer, and the deeper the network, the longer
# it takes. If it is stopped early, the first layers learn the wrong thing.
# `jpc.Equilibrium` is there after a few iterations.

# %%
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.flatten_util import ravel_pytree

import jpc
import jpc.data

SMALL = "JPC_SMALL" in os.environ  # The tests run this file with fewer networks.
DEPTHS = (4,) if SMALL else (2, 4, 8, 16)
STEPS, TIMES = 300, (2, 5, 20)

digits = jpc.data.load("digits", flatten=True)
x = jnp.asarray(digits.train[0][:32])
y = jax.nn.one_hot(digits.train[1][:32], 10)

# %% [markdown]
# ## The pieces
#
# An **energy** is a function of the layers, of the states that are inferred (`nodes`),
# and of what is given (`clamps`). `jpc.clamp` puts the images at the input and the labels
# at the output. The states begin with a forward pass.

# %%
energy = jpc.PCEnergy()


def pose(depth):
    """A network, what is inferred, and what is given."""
    layers = jpc.make_mlp(jax.random.key(0), 64, 32, depth, 10, "tanh")
    nodes, clamps = jpc.clamp(jpc.feedforward_batch(layers, x)[:-1], y, x)
    return layers, nodes, clamps


layers, nodes, clamps = pose(4)
print(f"the energy after a forward pass: {energy(layers, nodes, clamps):.6f}")

# %% [markdown]
# A **method** takes these, and returns where it ended. `GradientFlow` follows the slope
# of the energy for a time of 10. `Equilibrium` solves for the end.

# %%
flow = jpc.GradientFlow(t1=10.0)(energy, layers, nodes, clamps)
exact = jpc.Equilibrium()(energy, layers, nodes, clamps)
print(f"after the flow:     {energy(layers, flow.nodes, clamps):.6f}")
print(f"at the equilibrium: {energy(layers, exact.nodes, clamps):.6f}")
print(
    "has each example converged?", bool(jnp.all(exact.result == jpc.RESULTS.successful))
)

# %% [markdown]
# ## How does it know?
#
# At equilibrium the error of each layer is the error of the next layer, sent back through
# its derivative. Repeat this up to the output: all errors of the network follow from the
# few that are left there. So there are ten unknowns for each image, however deep the
# network is. [Predictive coding in one read](../docs/learn.md#5-what-equilibrium-means)
# derives it.
#
# You can check the answer without any theory. At equilibrium the gradient of the energy
# vanishes, up to the rounding of single precision:


# %%
def slope(nodes):
    """The largest derivative of the energy by a state."""
    gradient = jax.grad(lambda nodes: energy(layers, nodes, clamps))(nodes)
    return max(float(jnp.max(jnp.abs(g))) for g in jax.tree.leaves(gradient))


print(f"forward pass {slope(nodes):.1e}")
print(f"flow         {slope(flow.nodes):.1e}")
print(f"equilibrium  {slope(exact.nodes):.1e}")

# %% [markdown]
# ## How long does a flow take?
#
# Now take networks of several depths. Here the flow goes in steps of 0.1 (`jpc.Descent`),
# and `jpc.Record` keeps the states after each of them. As long as the energy is above that
# of equilibrium, there is something to gain.


# %%
def walk(depth):
    """The share of the energy that is still to be gained after each step, and the error of
    what each layer would learn at some times.
    """
    layers, nodes, clamps = pose(depth)
    record = jpc.Record(length=STEPS)
    way = jpc.Descent(0.1, STEPS)(energy, layers, nodes, clamps, record=record).trajectory
    end = jpc.Equilibrium(chords=10, max_steps=0)(energy, layers, nodes, clamps).nodes

    value = lambda nodes: energy(layers, nodes, clamps)
    energies = jax.lax.map(value, way.values) - value(end)

    at = lambda t: jax.tree.map(lambda z: z[10 * t], way.values)
    goal = find_lesson(layers, end, clamps)
    wrong = {t: compare(find_lesson(layers, at(t), clamps), goal) for t in TIMES}
    return energies / energies[0], wrong


def find_lesson(layers, nodes, clamps):
    """The gradient of the weights, a vector for each layer."""
    gradients = eqx.filter_grad(energy)(layers, nodes, clamps)
    return [ravel_pytree(gradient)[0] for gradient in gradients]


def compare(lesson, goal):
    norm = jnp.linalg.norm
    return [float(norm(a - b) / norm(b)) for a, b in zip(lesson, goal)]


left, wrong = {}, {}
for depth in DEPTHS:
    left[depth], wrong[depth] = walk(depth)

# %%
times = 0.1 * np.arange(STEPS + 1)
plt.figure(figsize=(5.5, 3.2), layout="constrained")
for depth, colour in zip(DEPTHS, ["#c9d6ea", "#8fabd3", "#4c72b0", "#1f3a63"]):
    shown = left[depth] > 1e-4
    plt.semilogy(times[shown], left[depth][shown], color=colour, label=f"{depth} layers")
plt.xlabel("time of the flow")
plt.ylabel("share of the energy\nstill to be gained")
plt.legend()
plt.show()

for depth in DEPTHS:
    reached = times[np.argmax(np.asarray(left[depth]) < 1e-3)]
    print(f"{depth:2d} layers: one thousandth is left at a time of {reached:.1f}")

# %% [markdown]
# All networks start at 1, with everything still to be gained. The shallow ones fall
# quickly. In the deep ones the error has to travel back through all layers, and their
# curves lie higher.
#
# ## Why it matters: the first layers
#
# Learning happens where inference ends. If a flow is stopped early, what do the layers
# learn? Here is how far their gradients are from those at equilibrium, in the deepest
# network.

# %%
depth = DEPTHS[-1]
plt.figure(figsize=(5.5, 3.2), layout="constrained")
for t, colour in zip(TIMES, ["#e3a6a8", "#c44e52", "#6d2326"]):
    layer = range(1, depth + 1)
    plt.plot(layer, wrong[depth][t], "o-", color=colour, label=f"time {t}")
plt.xlabel("layer")
plt.ylabel("relative error of what it learns")
plt.ylim(0)
plt.legend(title="flow stopped at")
plt.show()

# %% [markdown]
# Look at the left end. The first layers are far from the output. If the flow stops early,
# what they learn is off by as much as its own size. Layers that learn nothing at all would
# have an error of 1.
#
# ## What to try next
#
# - Change `"tanh"` to `"relu"`. The energy has kinks now. Does each example still
#   converge?
# - Time both methods. (Call each one twice, so that compiling does not count.)
# - [How to choose](../docs/choose.md#the-method-of-inference) says when to take which
#   method, and [inference, measured](../docs/inference.md) says what each of them costs.
