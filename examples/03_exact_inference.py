# %% [markdown]
# # Exact inference against flows
#
# Inference in predictive coding ends at an equilibrium, where no state wants to move. You
# can walk there in small steps, or you can solve for it. In this example you do both and
# compare.
#
# What you will see: a flow gets closer and closer and takes its time, and the deeper the
# network, the longer it takes. `jpc.Equilibrium` is there after a few iterations.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jpc
import jpc.data

SMALL = "JPC_SMALL" in os.environ  # The tests run this file with shallower networks.
DEPTHS = (2, 4) if SMALL else (2, 4, 8, 16)

digits = jpc.data.load("digits", flatten=True)
x = jnp.asarray(digits.train[0][:32])
y = jax.nn.one_hot(digits.train[1][:32], 10)

# %% [markdown]
# ## The pieces
#
# An **energy** is a function of parameters, of the states that are inferred (`nodes`),
# and of what is given (`clamps`). `jpc.clamp` puts the image at the input and the label
# at the output. The states begin with a forward pass.

# %%
energy = jpc.PCEnergy()


def pose(depth):
    """A network, and what is inferred and given."""
    layers = jpc.make_mlp(jax.random.key(0), 64, 32, depth, 10, "tanh")
    nodes, clamps = jpc.clamp(jpc.feedforward_batch(layers, x)[:-1], y, x)
    return layers, nodes, clamps


layers, nodes, clamps = pose(DEPTHS[1])
print(f"the energy after a forward pass: {energy(layers, nodes, clamps):.6f}")

# %% [markdown]
# A **method** takes these, and returns where it ended. Here is a gradient flow for a time
# of 10, and the equilibrium.

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
# At equilibrium the error of each layer is the next one, sent back through its
# derivative. Go on to the output, and all errors of the network follow from the few that
# are left there. So there are ten unknowns for each image, however deep the network is.
# [Predictive coding in one read](../docs/learn.md#5-what-equilibrium-means) derives it.
#
# You can check the answer without any theory: at equilibrium the gradient of the energy
# vanishes.


# %%
def slope(nodes):
    """The largest derivative of the energy by a state."""
    gradient = jax.grad(lambda nodes: energy(layers, nodes, clamps))(nodes)
    return max(float(jnp.max(jnp.abs(g))) for g in jax.tree.leaves(gradient))


print(
    f"forward pass {slope(nodes):.1e}, flow {slope(flow.nodes):.1e}, exact {slope(exact.nodes):.1e}"
)

# %% [markdown]
# ## How long does a flow take?
#
# Now for several depths. We follow a flow for a time of 64 and record its energy on the
# way. What is above the energy at equilibrium is still to be gained.

# %%
times = np.concatenate([[0.0], np.geomspace(0.25, 64, 25)])
left = {}
for depth in DEPTHS:
    layers, nodes, clamps = pose(depth)
    record = jpc.Record(energy.terms, ts=jnp.asarray(times))
    way = jpc.GradientFlow(t1=64.0)(
        energy, layers, nodes, clamps, record=record
    ).trajectory
    energies = sum(jnp.mean(term, axis=1) for term in jax.tree.leaves(way.values))
    end = energy(layers, jpc.Equilibrium()(energy, layers, nodes, clamps).nodes, clamps)
    left[depth] = np.asarray((energies - end) / (energies[0] - end))

plt.figure(figsize=(5.5, 3.2), layout="constrained")
for depth, colour in zip(DEPTHS, ["#c9d6ea", "#8fabd3", "#4c72b0", "#1f3a63"]):
    plt.loglog(
        times[1:],
        np.maximum(left[depth][1:], 1e-6),
        color=colour,
        label=f"{depth} layers",
    )
plt.xlabel("time of the flow")
plt.ylabel("energy still to be gained, as a share")
plt.legend()
plt.show()

for depth in DEPTHS:
    print(f"{depth:2d} layers: {100 * left[depth][-1]:.4f} % is left at the end")

# %% [markdown]
# Read the plot from left to right. All networks start at 1, with everything to be gained.
# The shallow ones fall quickly. In the deep ones the error has to travel back through all
# layers, and the curve stays up for longer.
#
# ## Why it matters: the first layer
#
# Learning happens where inference ends. If a flow is stopped early, what do the layers
# learn? `jpc.equilibrium_gap` compares the learning gradient with that at equilibrium,
# layer by layer.

# %%
model = jpc.make_mlp(jax.random.key(0), 64, 32, DEPTHS[-1], 10, "tanh")
start = jpc.init_activities_with_ffwd(model, x)
gaps = {}
for t in (2, 8, 32):
    method = jpc.GradientFlow(t1=float(t))
    activities = jpc.solve_inference((model, None), start, y, x, inference=method)
    gaps[t] = jpc.equilibrium_gap((model, None), activities, y, x)[
        "layer_gradient_errors"
    ]

plt.figure(figsize=(5.5, 3.2), layout="constrained")
for t, colour in zip(gaps, ["#e3a6a8", "#c44e52", "#6d2326"]):
    plt.plot(
        range(1, 1 + DEPTHS[-1]),
        gaps[t],
        "o-",
        color=colour,
        label=f"flow for a time of {t}",
    )
plt.xlabel("layer")
plt.ylabel("relative error of what it learns")
plt.ylim(0)
plt.legend()
plt.show()

# %% [markdown]
# Look at the left end. The first layers are far from the output. When the flow stops
# early, what they learn is off by nearly its whole size, and only the last layers are
# right.
#
# ## What to try next
#
# - Change `"tanh"` to `"relu"`. The energy has kinks now. Does every example still
#   converge?
# - Time both methods. (Call each one once before, so that compiling does not count.)
# - [How to choose](../docs/choose.md#the-method-of-inference) says when to take which
#   method, and [inference, measured](../docs/inference.md) has what each of them costs.
