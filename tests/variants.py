"""The registry of variants that `test_variants.py` runs its battery over: energies with a problem
of their own, and steps of training. A new variant is one more entry.
"""

import dataclasses
import functools as ft
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from helpers import make_problem

import jpc

PROBLEM = make_problem(batch=4)
MODEL, X, Y = PROBLEM.model, jnp.asarray(PROBLEM.x), jnp.asarray(PROBLEM.y)
BITS = jnp.asarray(np.asarray(Y) > 0, float)
BACK = make_problem(sizes=(2, 4, 4, 3), seed=5).model
KEY, OPTIM = jr.key(0), optax.adam(1e-2)


@dataclasses.dataclass(frozen=True)
class Variant:
    """An energy and a problem for it.

    - `given`: `(nodes, clamps)` of a batch.
    - `exact`: whether `Equilibrium` takes it.
    - `gradient`: whether its gradient is that of its value.
    """

    energy: jpc.AbstractEnergy
    params: Any
    given: tuple
    exact: bool = True
    gradient: bool = True


def chain(params=MODEL, output=Y, input: Any = X, start: Any = X, **masks):
    states = jpc.feedforward_batch(params, start)
    free = states if "mask" in masks else states[:-1]
    free = [start, *free] if input is None or "input_mask" in masks else free
    return jpc.clamp(free, output, input, **masks)


SKIPS = jpc.parameterise(
    MODEL, jpc.make_skip_model(3), fan_ins=[3, 4, 4], param_type="mupc", gamma=0.5
)
PRECISE = [jpc.Precise(layer, jnp.full(n, 0.3)) for layer, n in zip(MODEL, (4, 4, 2), strict=True)]
GRAPH = jpc.GraphEnergy({"h": ["x"], "y": ["h"], "v": ["h"]}, loss={"v": jpc.bernoulli})
HEADS = {"h": MODEL[0], "y": MODEL[2], "v": make_problem(seed=3).model[2]}
MASK = jnp.asarray(np.arange(8).reshape(4, 2) % 3 > 0)

IN_TIME = make_problem(sizes=(3, 3, 2), seed=4).model
SEEN = jnp.asarray(np.random.default_rng(1).normal(size=(4, 5, 2)))
BOTH = (MODEL, BACK[::-1])

ENERGIES = {
    "pc": Variant(jpc.PCEnergy(), MODEL, chain()),
    "ce": Variant(
        jpc.PCEnergy(jpc.cross_entropy), MODEL, chain(output=jnp.eye(2)[jnp.arange(4) % 2])
    ),
    "bernoulli": Variant(jpc.PCEnergy(jpc.bernoulli), MODEL, chain(output=BITS)),
    "poisson": Variant(jpc.PCEnergy(jpc.poisson), MODEL, chain(output=BITS)),
    "huber": Variant(jpc.PCEnergy(jpc.huber), MODEL, chain(output=3.3 * Y)),
    "precisions": Variant(
        jpc.PCEnergy(precision=[0.5, jnp.arange(1.0, 5.0), 2.0]), MODEL, chain()
    ),
    "learned precisions": Variant(jpc.PrecisionEnergy(), PRECISE, chain()),
    "mupc": Variant(jpc.PCEnergy(), SKIPS, chain(SKIPS)),
    "unsupervised": Variant(jpc.PCEnergy() + jpc.GaussianPrior(0.7), MODEL, chain(input=None)),
    "masked": Variant(jpc.PCEnergy(), MODEL, chain(mask=MASK)),
    "penalties": Variant(
        jpc.PCEnergy() + 0.5 * jpc.WeightDecay(0.1) + jpc.SpectralPenalty(0.1), MODEL, chain()
    ),
    "bidirectional": Variant(jpc.BPCEnergy(0.5, 1.0), BOTH, chain(), exact=False),
    "dendrites": Variant(jpc.BPCEnergy(0.5, 1.0, 0.3), BOTH, chain(), exact=False, gradient=False),
    "a sequence": Variant(
        jpc.SequenceEnergy(jpc.PCEnergy(), 5),
        IN_TIME,
        ([None, jnp.zeros((4, 5, 3)), None], [X, None, SEEN]),
    ),
    "graph": Variant(GRAPH, HEADS, jpc.pose(GRAPH, HEADS, {"x": X, "y": Y, "v": BITS})),
}


def begin(params, name="params"):
    state = OPTIM.init(eqx.filter(params, eqx.is_inexact_array))
    return {name: params, "optim": OPTIM, "opt_state": state}


def pose_graph(params, output, input, key):
    del key
    return jpc.pose(GRAPH, params, {"x": input, "y": output, "v": (output > 0).astype(float)})


def pose_unsupervised(params, output, input, key):
    del input
    return chain(params, output, None, jr.normal(key, (len(output), 3)))


PRIOR = jpc.PCEnergy() + jpc.GaussianPrior(1.0)
PC = ft.partial(jpc.make_pc_step, inference=jpc.Descent(0.1, 4))
GENERIC = ft.partial(jpc.make_step, inference=jpc.Descent(0.1, 4))
SHORT = dict(warm=jpc.Descent(0.1, 2), sampler=jpc.Langevin(0.2, 0.1), samples=2)


def begin_both(**models):
    states = [begin(model)["opt_state"] for model in models.values()]
    return models | dict(optims=[OPTIM, OPTIM], opt_states=tuple(states))


# For `fit`: a step, its state, and data.
STEPS: dict[str, tuple[Callable, dict[str, Any], tuple]] = {
    "pc": (PC, begin(MODEL, "model"), (X, Y)),
    "the paper's flow": (
        ft.partial(jpc.make_pc_step, max_t1=1.0, dt=0.5), begin(MODEL, "model"), (X, Y)
    ),
    "exact": (
        ft.partial(jpc.make_pc_step, inference=jpc.Equilibrium()), begin(MODEL, "model"), (X, Y)
    ),
    "error coordinates": (
        ft.partial(PC, inference=jpc.InErrors(jpc.Descent(0.1, 4))), begin(MODEL, "model"), (X, Y)
    ),
    "incremental": (ft.partial(jpc.make_ipc_step, steps=4), begin(MODEL, "model"), (X, Y)),
    "bernoulli": (ft.partial(PC, loss_id="bernoulli"), begin(MODEL, "model"), (X, BITS)),
    "graph": (ft.partial(GENERIC, energy=GRAPH, pose=pose_graph), begin(HEADS), (X, Y)),
    "unsupervised": (
        ft.partial(GENERIC, energy=PRIOR, pose=pose_unsupervised), begin(MODEL), (None, Y)
    ),
    "hybrid": (
        ft.partial(jpc.make_hpc_step, inference=jpc.Descent(0.1, 4)),
        begin_both(generator=MODEL, amortiser=BACK),
        (X, Y),
    ),
    "bidirectional": (
        jpc.make_bpc_step,
        begin_both(top_down_model=MODEL, bottom_up_model=BACK[::-1]),
        (X, Y),
    ),
    "temporal": (
        ft.partial(jpc.make_tpc_step, energy=jpc.PCEnergy(), inference=jpc.Descent(0.1, 4)),
        begin(IN_TIME),
        (X, SEEN),
    ),
    "Monte Carlo": (
        ft.partial(jpc.make_mcpc_step, **SHORT, energy=PRIOR, pose=pose_unsupervised),
        begin(MODEL),
        (None, Y),
    ),
}  # fmt: skip
