"""Methods of inference, and how far they get in which time."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

import jpc

from .._layer import feedforward_batch
from .._types import Layers, Nodes, Number
from ._cell import Row

ENERGY = jpc.PCEnergy()


def flow(solver: str, t1: Number, dt: Number, reduction: str) -> jpc.AbstractInference:
    times = dict(t1=jnp.asarray(t1), dt0=jnp.asarray(dt))  # Arrays, so as to compile once.
    options: Any = dict(**times, reduction=reduction, throw=False)
    if solver == "euler":
        return jpc.GradientFlow(dfx.Euler(), controller=dfx.ConstantStepSize(), **options)
    # It takes tens of steps, but thousands for a network whose training has gone astray.
    pid = dfx.PIDController(rtol=1e-3, atol=1e-3)
    return jpc.GradientFlow(dfx.Heun(), controller=pid, max_steps=1000, **options)


def accurate_flow(t1: Number) -> jpc.AbstractInference:
    """As in the paper, but for the error of its solver."""
    options: Any = dict(rtol=1e-5, max_steps=10_000, reduction="mean", throw=False)
    return jpc.GradientFlow(dfx.Tsit5(), jnp.asarray(t1), **options)


def paper_flow(solver: str, t1: Number, dt: Number) -> jpc.AbstractInference:
    """As in the paper: the whole batch is one system, that of its mean energy."""
    if solver == "equilibrium":
        return equilibrium(3)
    return flow(solver, t1, dt, "mean")


def equilibrium(chords: int) -> jpc.Equilibrium:
    return jpc.Equilibrium(chords=chords, max_steps=0, throw=False)


def pose(layers: Layers, x: Array, y: Array) -> tuple[Nodes, Nodes]:
    """Where inference starts: a feedforward pass, with the ends clamped."""
    return jpc.clamp(feedforward_batch(layers, x)[:-1], y, x)


def methods(batch: int) -> list[tuple[str, str, jpc.AbstractInference]]:
    """Families of methods, each with more and more time: family, setting, method. The flow of the
    mean energy of a batch is slower than that of each example by the size of the batch.
    """
    found: list[tuple[str, str, jpc.AbstractInference]] = []
    for t1 in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        long = t1 * batch
        found += [
            ("Euler, dt = 0.5", f"T = {long:g}", flow("euler", long, 0.5, "mean")),
            ("Euler, dt = 5", f"T = {long:g}", flow("euler", long, 5.0, "mean")),
            ("Euler, dt = 20", f"T = {long:g}", flow("euler", long, 20.0, "mean")),
            ("Heun", f"T = {long:g}", flow("heun", long, 0.5, "mean")),
            ("Euler of each example, dt = 0.3", f"T = {t1:g}", flow("euler", t1, 0.3, "sum")),
            ("Heun of each example", f"T = {t1:g}", flow("heun", t1, 0.3, "sum")),
        ]
    found += [("Equilibrium", f"{k} chords", equilibrium(k)) for k in (1, 2, 3)]
    return sorted(found, key=lambda method: method[0])


def compare_methods(layers: Layers, x: Array, y: Array) -> list[Row]:
    """How long each method takes on one batch, how many gradients, and how far from equilibrium
    it ends: its excess energy relative to that at the start, and the error of the learning
    gradient.
    """
    nodes, clamps = pose(layers, x, y)
    start, rows = _gap(layers, nodes, clamps), []
    for family, setting, method in methods(len(x)):
        call = lambda method=method: infer(method, layers, nodes, clamps)
        ended, evaluations = call()
        gap = _gap(layers, ended, clamps)
        rows.append(
            dict(
                method=family,
                setting=setting,
                ms=statistics.median(timed(call)[0] for _ in range(3)),
                evaluations=float(evaluations),
                excess=float(gap["excess"] / start["excess"]),
                gradient_error=float(gap["gradient_error"]),
            )
        )
    return rows


@eqx.filter_jit
def infer(
    method: jpc.AbstractInference, layers: Layers, nodes: Nodes, clamps: Nodes
) -> tuple[Nodes, Array]:
    """The nodes, and how many gradients it took."""
    inferred = method(ENERGY, layers, nodes, clamps)
    return inferred.nodes, jnp.max(inferred.stats["evaluations"])


def _gap(layers: Layers, nodes: Nodes, clamps: Nodes) -> dict:
    activities = [*nodes[1:-1], clamps[-1]]
    return jpc.equilibrium_gap((layers, None), activities, clamps[-1], clamps[0])


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call takes, in milliseconds, and its result."""
    begin = time.perf_counter()
    result = jax.block_until_ready(call())
    return 1e3 * (time.perf_counter() - begin), result
