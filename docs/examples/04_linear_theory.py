# %% [markdown]
# # What a linear network can tell
#
# A network without activation functions is simple enough to solve on paper. The energy at
# the end of inference then has a formula. In this example you check it, and use it to see
# what predictive coding changes about learning.
#
# What you will see: the formula is right to all digits, and predictive coding gets away
# from a place where backpropagation is stuck for long.

# %%
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jpc

SMALL = "JPC_SMALL" in os.environ  # The tests run this file with fewer updates.
UPDATES = 300 if SMALL else 1500

# %% [markdown]
# ## The formula
#
# Say that the forward pass $W_L \cdots W_1 x$ is wrong by $r$. Inference shares that
# error out, and the energy that is left is
#
# $$F^* = \tfrac{1}{2} \, r^T S^{-1} r, \qquad S = I + \sum_{\ell=2}^{L} W_{L:\ell} W_{L:\ell}^T,$$
#
# where $W_{L:\ell} = W_L \cdots W_\ell$. So the energy is the usual loss, rescaled by
# $S$. Here it is in NumPy, and in the library.

# %%
model = jpc.make_mlp(jax.random.key(0), 8, 16, 4, 3, "linear")
x = jax.random.normal(jax.random.key(1), (32, 8))
y = jax.random.normal(jax.random.key(2), (32, 3))

weights = [np.asarray(w) for w in jax.tree.leaves(eqx.filter(model, eqx.is_array))]
products = [np.eye(3)]  # I, W_L, W_L W_(L-1), ...
for weight in weights[::-1]:
    products.append(products[-1] @ weight)
S = sum(product @ product.T for product in products[:-1])
r = np.asarray(y) - np.asarray(x) @ products[-1].T
by_hand = 0.5 * np.mean(np.sum(r * np.linalg.solve(S, r.T).T, axis=1))
by_library = jpc.linear_equilib_energy((model, None), x, y)
print(f"by hand {by_hand:.6f}, by the library {by_library:.6f}")

# %% [markdown]
# Does inference end there? Walk down the energy and see.

# %%
energy = jpc.PCEnergy()
nodes, clamps = jpc.clamp(jpc.feedforward_batch(model, x)[:-1], y, x)
record = jpc.Record(energy.terms, length=150)
way = jpc.Descent(0.1, 150)(energy, model, nodes, clamps, record=record).trajectory
energies = sum(np.mean(term, axis=1) for term in jax.tree.leaves(way.values))
print(f"at first {energies[0]:.6f}, after 150 steps of 0.1 {energies[-1]:.6f}")

plt.figure(figsize=(5.5, 3), layout="constrained")
plt.plot(energies, color="#4c72b0", label="inference")
plt.axhline(by_hand, linestyle="--", color="#c44e52", label="the formula, $F^*$")
plt.xlabel("steps of inference")
plt.ylabel("energy")
plt.legend()
plt.show()

# %% [markdown]
# The curve comes down onto the dashed line, and stays there.
#
# ## Another landscape
#
# Learning goes down $F^*$, not the loss. What is different? Take the smallest deep
# network: one input of 1, a target of 1, and three weights. Two of them are equal, so
# that we can draw it: $\hat y = b \, a^2$.

# %%
a, b = np.meshgrid(np.linspace(-1.6, 1.6, 81), np.linspace(-1.6, 1.6, 81))
loss = 0.5 * (1 - b * a**2) ** 2
rescaled = loss / (1 + b**2 + b**2 * a**2)  # S = 1 + W_3^2 + (W_3 W_2)^2.

figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.4), sharey=True, layout="constrained")
for axis, values, title in zip(
    axes, (loss, rescaled), ("the loss", "the energy at equilibrium")
):
    axis.contourf(a, b, values, np.linspace(0, 1, 21), cmap="Blues", extend="max")
    axis.plot(0, 0, "x", color="#c44e52")
    axis.set(xlabel="the first two weights, $a$", title=title)
axes[0].set_ylabel("the last weight, $b$")
plt.show()

# %% [markdown]
# Dark is high. Look at the red cross, where all weights are zero. On the left it is
# surrounded by a wide flat plain: the loss does not change there, to first and second
# order. On the right there is a way down, along $b$. Both landscapes have their valleys
# in the same places.
#
# JAX can put numbers to this: here are the curvatures at the origin, with three free
# weights. A negative curvature is a way down.

# %%
half_square = lambda w: 0.5 * (1 - w[2] * w[1] * w[0]) ** 2
equilibrium = lambda w: half_square(w) / (1 + w[2] ** 2 + (w[2] * w[1]) ** 2)
for name, function in {"loss": half_square, "energy": equilibrium}.items():
    curvature = np.linalg.eigvalsh(jax.hessian(function)(jnp.zeros(3)))
    print(f"{name:6s} curvatures at the origin: {np.round(curvature, 3) + 0.0}")

# %% [markdown]
# ## Getting away from zero
#
# So a deep network that starts close to zero should learn sooner with predictive coding.
# Train one both ways, with the same plain gradient descent.

# %%
teacher = jax.random.normal(jax.random.key(3), (8, 3)) / jnp.sqrt(8)
targets = x @ teacher
small = jax.tree.map(lambda w: 0.1 * w if eqx.is_array(w) else w, model)
optim = optax.sgd(0.05)


def train(rule):
    model, losses = small, []
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    for _ in range(UPDATES):
        step = jpc.make_pc_step(model, optim, opt_state, targets, x, inference=rule)
        model, opt_state = step["model"], step["opt_state"]
        losses.append(float(step["loss"]))
    return losses


losses = {
    "backpropagation": train(jpc.Backprop()),
    "predictive coding": train(jpc.Equilibrium(chords=2, max_steps=0)),
}
for name, values in losses.items():
    print(
        f"{name:18s} loss {values[0]:.4f} at first, {values[-1]:.4f} after {UPDATES} updates"
    )

# %%
plt.figure(figsize=(5.5, 3), layout="constrained")
for (name, values), colour in zip(losses.items(), ["#999999", "#4c72b0"]):
    plt.plot(values, color=colour, label=name)
plt.xlabel("updates")
plt.ylabel("loss of the forward pass")
plt.ylim(0)
plt.legend()
plt.show()

# %% [markdown]
# Backpropagation (grey) is still on the plain when we stop. Predictive coding (blue) has
# found the way down.
#
# ## What to try next
#
# - Start from `0.3 * w` or `0.03 * w`. How do the plateaus change?
# - Change the depth in `make_mlp`. The plain around the origin gets flatter with each
#   layer.
# - There is another side to this: a large $S$ makes the energy small without making the
#   error small. [Deep networks and the regime](05_deep_networks.py) shows when that hurts.
