import functools as ft
from typing import Any, cast

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, PRNGKeyArray, PyTree

from .._checks import raise_if_not_finite
from .._clamp import inferred
from .._given import check_count, check_flags, check_type, is_real, show
from .._types import Clamps, Given, Nodes, Number
from .base import (
    NEEDS_KEY,
    RESULTS,
    AbstractInference,
    Inferred,
    Record,
    Trajectory,
    as_precise,
    by_name,
    check_free,
    check_positive,
    check_step,
    gradient_norm,
    method,
    until,
)

_PATHS = (dfx.UnsafeBrownianPath, dfx.VirtualBrownianTree)


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
    - `path`: the kind of Brownian path. `diffrax.UnsafeBrownianPath` draws fresh noise for each
        step, which is fast. `diffrax.VirtualBrownianTree` is many times slower, and the same
        path for every solver and step size; differentiation in reverse needs it.
    - `max_steps`: an error when more are needed.
    - `throw`: whether states that are not finite raise an error.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    drawn = jpc.Langevin(t1=1.0, dt=0.05)(energy, model, nodes, clamps, key=jr.key(0))
    ```
    """

    t1: Given[Number] = 100.0
    dt: Given[Number] = 0.01
    temperature: Given[Number] = 1.0
    preconditioner: PyTree = 1.0
    solver: Given[dfx.AbstractSolver] = dfx.Euler()
    path: Given[type[dfx.AbstractBrownianPath]] = eqx.field(static=True, default=_PATHS[0])
    max_steps: Given[int] = eqx.field(static=True, default=1_000_000)
    throw: Given[bool] = eqx.field(static=True, default=True)

    def __check_init__(self):
        for name in ("t1", "dt", "temperature"):
            check_positive(name, getattr(self, name))
        check_step("dt", self.dt, self.t1)
        for speed in jax.tree.leaves(self.preconditioner):
            if not is_real(speed) or not (isinstance(speed, Tracer) or np.all(_positive(speed))):
                raise ValueError(f"preconditioner must be positive numbers, got {show(speed)}.")
        check_type("solver", self.solver, dfx.AbstractSolver, "diffrax.Euler()")
        check_count("max_steps", self.max_steps)
        check_flags(throw=self.throw)
        if not (isinstance(self.path, type) and self.path in _PATHS):
            listed = " or ".join(f"diffrax.{kind.__name__}" for kind in _PATHS)
            raise TypeError(f"path must be {listed}, the class itself: got {show(self.path)}.")

    @method
    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        if key is None:
            raise ValueError(f"Langevin dynamics are random: {NEEDS_KEY}")
        check_free(nodes)
        record = Record(ts=jnp.asarray(self.t1)[None]) if record is None else record
        ts, fn = record.ts, record.fn
        if ts is None:
            raise ValueError("Langevin keeps samples at given times: give Record(ts=...).")
        nodes, ts = until(self.t1, ts, nodes), jnp.minimum(ts, self.t1)
        batch = jax.tree.leaves(nodes)[0].shape[0]
        end, way, steps = self._sample(energy, params, nodes, clamps, key, ts, fn)
        times = jnp.broadcast_to(ts[:, None], (*ts.shape, batch))
        trajectory = Trajectory(times, way, jnp.asarray(ts.shape[0]))
        norm = gradient_norm(energy, params, end, clamps)
        result = jax.vmap(_result)(norm)
        if self.throw:
            end = raise_if_not_finite(by_name(end), end)
        steps = jnp.broadcast_to(steps, (batch,))
        stats = {"steps": steps, "evaluations": steps, "gradient_norm": norm}
        return Inferred(end, result, stats, trajectory)

    def _sample(self, energy, params, nodes, clamps, key, ts, fn):
        """All examples at once: they have the same times, and noise is drawn in one go."""
        speed, times = self._speed(nodes, clamps), ft.partial(as_precise, nodes)
        gradient = jax.grad(energy.example, argnums=1)

        def drift(t, z, args):
            grads = jax.vmap(lambda n, c: gradient(params, n, c))(z, clamps)
            return jax.tree.map(lambda m, g: -m * g, speed, grads)

        noise = jax.tree.map(lambda m: jnp.sqrt(2 * self.temperature * m), speed)
        diffusion = lambda t, z, args: lx.DiagonalLinearOperator(noise)
        keep = jax.vmap(lambda n, c: fn(params, n, c))
        saved = dfx.SubSaveAt(ts=times(ts), fn=lambda t, z, args: keep(z, clamps))
        path, adjoint = self._path(nodes, key)
        solution = dfx.diffeqsolve(
            dfx.MultiTerm(dfx.ODETerm(drift), dfx.ControlTerm(diffusion, path)),
            self.solver,
            t0=times(0.0),
            t1=times(self.t1),
            dt0=times(self.dt),
            y0=nodes,
            saveat=dfx.SaveAt(subs=[dfx.SubSaveAt(t1=True), saved]),
            max_steps=self.max_steps,
            adjoint=adjoint,
        )
        end, way = cast(Any, solution.ys)
        return (
            jax.tree.map(lambda z: jnp.squeeze(z, axis=0), end),
            way,
            solution.stats["num_steps"],
        )

    def _speed(self, nodes: Nodes, clamps: Clamps) -> Nodes:
        speed = self.preconditioner
        if jax.tree.structure(speed) == jax.tree.structure(0.0):
            speed = jax.tree.map(lambda z: jnp.full_like(z, speed), nodes)
        if jax.tree.structure(speed) != jax.tree.structure(nodes):
            raise ValueError(
                "preconditioner must be a number, or a tree like the nodes with one for each of "
                f"them, None where there is none: got {show(self.preconditioner)}."
            )
        speed = jax.tree.map(_spread, speed, nodes)
        return inferred(speed, clamps)  # What is given stays as it is.

    def _path(self, nodes: Nodes, key: PRNGKeyArray) -> tuple[Any, dfx.AbstractAdjoint]:
        """Brownian paths of the nodes, and how to differentiate along them."""
        shape = jax.tree.map(lambda z: jax.ShapeDtypeStruct(z.shape, z.dtype), nodes)
        if self.path is dfx.UnsafeBrownianPath:
            # Without the memory that differentiation in reverse needs.
            fresh = dfx.UnsafeBrownianPath(shape, key, _levy_area(self.solver))
            return fresh, dfx.ForwardMode()
        t0, t1, dt = (as_precise(nodes, t) for t in (0.0, self.t1, self.dt))
        # All that any solver needs: with less it would be another path.
        area = dfx.SpaceTimeTimeLevyArea
        tree = dfx.VirtualBrownianTree(t0, t1, dt / 2, shape, key, area)
        return tree, dfx.RecursiveCheckpointAdjoint()


def _spread(speed: Any, state: Array) -> Array:
    """One for each unit of a state."""
    shape = jnp.shape(speed)
    try:
        return jnp.broadcast_to(speed, state.shape)
    except ValueError:
        raise ValueError(
            f"preconditioner has the shape {shape} for a node of shape {state.shape}: give a "
            "number, or an array that can be broadcast to it."
        ) from None


def _positive(speed: Any) -> Any:
    return (np.asarray(speed) > 0) & np.isfinite(speed)


def _levy_area(solver: dfx.AbstractSolver) -> Any:
    """What a solver needs to know of a Brownian path: its increments, or more."""
    least = getattr(solver, "minimal_levy_area", dfx.AbstractBrownianIncrement)
    kinds = (dfx.BrownianIncrement, dfx.SpaceTimeLevyArea, dfx.SpaceTimeTimeLevyArea)
    return next(kind for kind in kinds if issubclass(kind, least))


def _result(norm: Array) -> RESULTS:
    return RESULTS.where(jnp.isfinite(norm), RESULTS.stopped_early, RESULTS.diverged)
