# %% [markdown]
# # An energy of your own
#
# In predictive coding the energy is the model. If you want a network with other
# properties, write another energy. It takes ten lines, and everything else in the library
# works with it.
#
# In this example the data have outliers, and squared errors take them far too seriously.
# You write an energy that does not. What you will see: with squared errors a few wild
# points bend the curve. With your own energy they do not.

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

SMALL = "JPC_SMALL" in os.environ  # The tests run this file with fewer epochs.
EPOCHS = 60 if SMALL else 250

# %% [markdown]
# ## Data with outliers
#
# The data are a sine with a little noise, and some points are off by a lot.

# %%
rng = np.random.default_rng(0)
x = rng.uniform(-3, 3, size=(240, 1))
truth = np.sin(x)
wild = rng.random((240, 1)) < 1 / 6
y = truth + 0.1 * rng.normal(size=x.shape) + np.where(wild, rng.uniform(1, 5, x.shape), 0)
print(f"{int(wild.sum())} of {len(x)} points are outliers, all of them too high")

# %% [markdown]
# ## The energy
#
# An energy says what its terms are, for one example. `jpc.states` returns all states of
# the network in order, the input first and the output last. Here the hidden layers keep the
# squared error. At the output a large error costs its absolute value instead of its
# square:
#
# $$\rho(e) = s^2 \left( \sqrt{1 + e^2 / s^2} - 1 \right).$$


# %%
def robust(target, prediction):
    """Half the square of a small error, and about s times the size of a large one."""
    s = 0.1
    return jnp.sum(s**2 * (jnp.sqrt(1 + ((target - prediction) / s) ** 2) - 1))


class RobustEnergy(jpc.AbstractEnergy):
    def terms(self, params, nodes, clamps):
        states = jpc.states(nodes, clamps)
        predictions = [layer(z) for layer, z in zip(params, states)]
        errors = [z - p for z, p in zip(states[1:-1], predictions)]
        hidden = [0.5 * jnp.sum(error**2) for error in errors]
        return [*hidden, robust(states[-1], predictions[-1])]


# %% [markdown]
# That is all. No gradient, no update rule, no batches: JAX and the library do those.
#
# ## Training with it
#
# `make_pc_step` takes `energy=`. `Descent` takes steps down any energy, here 40 steps of
# 0.02.


# %%
def train(energy):
    model = jpc.make_mlp(jax.random.key(0), 1, 32, 3, 1, "tanh", use_bias=True)
    optim = optax.adam(5e-3)
    state = dict(
        model=model, optim=optim, opt_state=optim.init(eqx.filter(model, eqx.is_array))
    )
    step = functools.partial(
        jpc.make_pc_step, energy=energy, inference=jpc.Descent(0.02, 40)
    )
    options = dict(epochs=EPOCHS, batch_size=60, key=jax.random.key(1), progress=False)
    return jpc.fit(step, state, (x, y), **options).state["model"]


def predict(model, x):
    return np.asarray(jpc.feedforward_batch(model, jnp.asarray(x))[-1])


models = {"squared": train(jpc.PCEnergy()), "robust": train(RobustEnergy())}
errors = {
    name: np.abs(predict(model, x) - truth).mean() for name, model in models.items()
}
for name, error in errors.items():
    print(f"{name:8s} mean distance to the true curve: {error:.3f}")

# %%
grid = np.linspace(-3, 3, 200)[:, None]
plt.figure(figsize=(6, 3.4), layout="constrained")
plt.plot(x, y, ".", color="#bbbbbb", label="data")
plt.plot(grid, np.sin(grid), "--", color="k", linewidth=1, label="truth")
plt.plot(grid, predict(models["squared"], grid), color="#c44e52", label="squared error")
plt.plot(grid, predict(models["robust"], grid), color="#4c72b0", label="your energy")
plt.xlabel("x")
plt.ylabel("y")
plt.ylim(-1.6, 5)
plt.legend(ncols=2)
plt.show()

# %% [markdown]
# The outliers pull up the red curve. The blue one stays with the crowd.
#
# ## Exact inference for it
#
# `jpc.Equilibrium` needs to know what predicts what, and a list of terms does not say
# that. But here only the loss at the output is new. `PCEnergy` takes a loss of your own,
# and if the loss is convex, `Equilibrium` solves it. Is it the same energy?

# %%
solvable = jpc.PCEnergy(robust)
model = models["robust"]
nodes, clamps = jpc.clamp(
    jpc.feedforward_batch(model, jnp.asarray(x))[:-1], jnp.asarray(y), jnp.asarray(x)
)
same = RobustEnergy()(model, nodes, clamps), solvable(model, nodes, clamps)
print(f"as a list of terms {same[0]:.6f}, as a loss {same[1]:.6f}")

walked = jpc.Descent(0.02, 2000)(RobustEnergy(), model, nodes, clamps)
solved = jpc.Equilibrium()(solvable, model, nodes, clamps)
ends = [RobustEnergy()(model, found.nodes, clamps) for found in (walked, solved)]
print(f"after 2000 steps {ends[0]:.6f}, at equilibrium {ends[1]:.6f}")

# %% [markdown]
# Both are the same, and both methods end at the same place.
#
# ## What to try next
#
# - Change `s`. With a large `s` the loss is the squared error again.
# - Energies add: `RobustEnergy() + jpc.WeightDecay(1e-3)`.
# - Add a term of your own to the list, such as `0.01 * jnp.sum(jnp.abs(states[1]))`,
#   which makes a hidden layer sparse.
# - [Write your own](../docs/extend.md) has layers, methods and steps as well.
