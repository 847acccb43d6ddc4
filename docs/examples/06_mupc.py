# %% [markdown]
# # Tune a small network, train a large one
#
# The best learning rate of a network usually changes with its width and depth. That is a
# nuisance, because large networks are expensive to tune. The parameterisation *muPC*
# removes this dependence. In this example you find the learning rate of a small network,
# and see whether it is right for a larger one.
#
# What you will see: curves of loss against learning rate. With the standard
# parameterisation their lowest points wander. With muPC they stay in place.

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

SMALL = "JPC_SMALL" in os.environ  # The tests run this file with smaller networks.
SHAPES = ((16, 4),) if SMALL else ((16, 6), (128, 6), (16, 16))  # Width and depth.
RATES = {
    "sp": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
    "mupc": (3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0),
}

digits = jpc.data.load("digits", flatten=True)

# %% [markdown]
# ## The network
#
# Networks of both kinds have skip connections around their hidden layers:
# `make_residual_mlp` returns the layers and the skips. With `param_type="mupc"` weights
# are drawn from a normal distribution with variance 1, and each prediction is scaled by
# width and depth. `"sp"` is the standard parameterisation.
#
# The type goes to the network, to the step, and to the evaluation. Inference solves for
# the equilibrium, with an output precision of 0.1.

# %%
# The learning rate is in the optimiser's state, so that all rates share one program.
optim = optax.inject_hyperparams(optax.adam)(learning_rate=1.0)
inference = jpc.Equilibrium(chords=2, max_steps=0, throw=False)


def sweep(kind, width, depth):
    """The loss on the test set after two epochs, for each learning rate."""
    model, skips = jpc.make_residual_mlp(
        jax.random.key(0), 64, width, depth, 10, "tanh", param_type=kind
    )
    exact = dict(inference=inference, output_energy_scaling=0.1)
    step = functools.partial(jpc.make_pc_step, param_type=kind, **exact)
    evaluate = functools.partial(jpc.evaluate_discriminative, param_type=kind)
    losses = []
    for rate in RATES[kind]:
        opt_state = optim.init(eqx.filter((model, skips), eqx.is_array))
        opt_state.hyperparams["learning_rate"] = jnp.asarray(rate)
        fitted = jpc.fit(
            step,
            dict(model=model, skip_model=skips, optim=optim, opt_state=opt_state),
            digits.train,
            epochs=2,
            batch_size=64,
            key=jax.random.key(1),
            test=digits.test,
            evaluate=evaluate,
            progress=False,
        )
        losses.append(fitted.history[-1]["test_loss"])
    return losses


# %% [markdown]
# ## The sweep

# %%
losses = {(kind, shape): sweep(kind, *shape) for kind in RATES for shape in SHAPES}
best = {where: RATES[where[0]][int(np.argmin(row))] for where, row in losses.items()}
for (kind, (width, depth)), rate in best.items():
    print(
        f"{kind:4s} width {width:3d}, depth {depth:2d}: the best learning rate is {rate:g}"
    )

# %%
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.2), sharey=True, layout="constrained")
for axis, (kind, rates) in zip(axes, RATES.items()):
    for shape, colour in zip(SHAPES, ["#8fabd3", "#1f3a63", "#c44e52"]):
        row = np.minimum(losses[kind, shape], 0.6)
        axis.semilogx(
            rates, row, "o-", color=colour, label=f"width {shape[0]}, depth {shape[1]}"
        )
        axis.plot(best[kind, shape], min(row), "*", color=colour, markersize=14)
    axis.set(xlabel="learning rate", title={"sp": "standard", "mupc": "muPC"}[kind])
axes[0].set_ylabel("test loss after two epochs")
axes[0].legend(fontsize=8)
plt.show()

# %% [markdown]
# Look for the stars, the best rate of each network. (Losses above 0.6 are drawn at 0.6.)
# On the left the larger networks want other rates than the small one. On the right the
# stars are above each other: the rate that is best for the small network is best for the
# others, too.
#
# ## Using it
#
# Take the best rate of the *smallest* network, and look at the loss of the others with it.

# %%
for kind in RATES:
    small = best[kind, SHAPES[0]]
    for shape in SHAPES[1:]:
        loss, least = (
            losses[kind, shape][RATES[kind].index(small)],
            min(losses[kind, shape]),
        )
        print(f"{kind:4s} {shape}: loss {loss:.3f} with its rate, {least:.3f} at best")

# %% [markdown]
# ## What to try next
#
# - Add a shape, such as `(128, 16)`.
# - [muPC](../docs/variants/mupc.md) has the formulas, larger networks, and a hundred
#   layers.
