from typing import Any, cast

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import lineax as lx
from jaxtyping import Array, PyTree

from .._checks import raise_if_not_finite
from .._clamp import inferred
from .._types import Number
from .base import (
    RESULTS,
    AbstractInference,
    Inferred,
    Record,
    Trajectory,
    as_precise,
    by_name,
    check_positive,
    gradient_norm,
    method,
)


class Langevin(AbstractInference):
    r"""Samples activities instead of descending: the gradient flow with noise,

    $$dz = -M \nabla_z F(\theta, z) \, dt + \sqrt{2 T M} \, dW,$$

    whose stationary distribution has the density $\exp(-F / T)$ up to a factor, the posterior
    of the network at temperature 1. Each example has a path of its own.

    **Arguments:**

    - `t1`: how long to go on. The last states are the `nodes` of the answer; more samples are
        a [`jpc.Record`][] at times after the distribution has settled.
    - `dt`: the step size; the bias of the samples is proportional to it.
    - `temperature`: $T$.
    - `preconditioner`: $M$, a positive number, or one for each node in a tree like the nodes.
        It changes the speed and not the distribution.
    - `solver`: a Diffrax solver for SDEs with additive noise, such as `Euler`, `Heun` or `ShARK`.
    - `max_steps`: an error when more are needed.
    - `throw`: whether states that are not finite raise an error.
    """

    t1: Number = 100.0
    dt: Number = 0.01
    temperature: Number = 1.0
    preconditioner: PyTree = 1.0
    solver: dfx.AbstractSolver = dfx.Euler()
    max_steps: int = eqx.field(static=True, default=1_000_000)
    throw: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        for name in ("t1", "dt", "temperature", "preconditioner", "max_steps"):
            check_positive(name, getattr(self, name))

    @method
    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        if key is None:
            raise ValueError("Langevin dynamics are random: give a key.")
        record = Record(ts=jnp.asarray(self.t1)[None]) if record is None else record
        ts, fn = record.ts, record.fn
        if ts is None:
            raise ValueError("Langevin keeps samples at given times: give Record(ts=...).")
        batch = jax.tree.leaves(nodes)[0].shape[0]
        one = lambda n, c, k: self._sample(energy, params, n, c, k, ts, fn)
        end, way, steps = jax.vmap(one)(nodes, clamps, jr.split(key, batch))
        values = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), way)
        times = jnp.broadcast_to(ts[:, None], (*ts.shape, batch))
        trajectory = Trajectory(times, values, jnp.asarray(ts.shape[0]))
        norm = gradient_norm(energy, params, end, clamps)
        result = jax.vmap(_result)(norm)
        if self.throw:
            end = raise_if_not_finite(by_name(end), end)
        stats = {"steps": steps, "evaluations": steps, "gradient_norm": norm}
        return Inferred(end, result, stats, trajectory)

    def _sample(self, energy, params, nodes, clamps, key, ts, fn):
        speed = self.preconditioner
        if jax.tree.structure(speed) == jax.tree.structure(0.0):
            speed = jax.tree.map(lambda z: jnp.full_like(z, speed), nodes)
        speed = jax.tree.map(jnp.broadcast_to, speed, jax.tree.map(jnp.shape, nodes))
        speed = inferred(speed, clamps)  # What is given stays as it is.

        def drift(t, z, args):
            grads = jax.grad(energy.example, argnums=1)(params, z, clamps)
            return jax.tree.map(lambda m, g: -m * g, speed, grads)

        noise = jax.tree.map(lambda m: jnp.sqrt(2 * self.temperature * m), speed)
        shape = jax.tree.map(lambda z: jax.ShapeDtypeStruct(z.shape, z.dtype), nodes)
        t0, t1, dt, ts = (as_precise(nodes, t) for t in (0.0, self.t1, self.dt, ts))
        area = _levy_area(self.solver)
        path = dfx.VirtualBrownianTree(t0, t1, tol=dt / 2, shape=shape, key=key, levy_area=area)
        diffusion = dfx.ControlTerm(lambda t, z, args: lx.DiagonalLinearOperator(noise), path)
        keep = lambda t, z, args: fn(params, z, clamps)
        solution = dfx.diffeqsolve(
            dfx.MultiTerm(dfx.ODETerm(drift), diffusion),
            self.solver,
            t0=t0,
            t1=t1,
            dt0=dt,
            y0=nodes,
            saveat=dfx.SaveAt(subs=[dfx.SubSaveAt(t1=True), dfx.SubSaveAt(ts=ts, fn=keep)]),
            max_steps=self.max_steps,
        )
        end, way = cast(Any, solution.ys)
        return jax.tree.map(lambda z: z[0], end), way, solution.stats["num_steps"]


def _levy_area(solver: dfx.AbstractSolver) -> Any:
    """What a solver needs to know of a Brownian path: its increments, or more."""
    least = getattr(solver, "minimal_levy_area", dfx.AbstractBrownianIncrement)
    kinds = (dfx.BrownianIncrement, dfx.SpaceTimeLevyArea, dfx.SpaceTimeTimeLevyArea)
    return next(kind for kind in kinds if issubclass(kind, least))


def _result(norm: Array) -> RESULTS:
    return RESULTS.where(jnp.isfinite(norm), RESULTS.stopped_early, RESULTS.diverged)
