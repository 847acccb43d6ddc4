import functools as ft
from collections.abc import Callable
from typing import Any, Literal, cast

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from .._flat import flatten
from .._given import check_count, check_flags, check_type, choice
from .._types import Given, Number, Scalar
from .base import (
    RESULTS,
    AbstractInference,
    Trajectory,
    as_precise,
    check_free,
    check_positive,
    check_step,
    finish,
    method,
    until,
)
from .stages import Stages, futile, rms


class GradientFlow(AbstractInference):
    r"""Integrates the gradient flow of an energy,

    $$\dot z = -\nabla_z F(\theta, z),$$

    until a steady state, or the time `t1`.

    **Arguments:**

    - `solver`: any Diffrax ODE solver.
    - `t1`: when to stop at the latest.
    - `dt0`: the (first) step size. An adaptive controller finds its own if it is `None`.
    - `controller`: any Diffrax step size controller. The default one is a `PIDController` whose
        tolerance is tied to `rtol` and to the gradient at the start: with a looser one an
        adaptive explicit solver hops around equilibrium and never settles.
    - `rtol`: a system has reached its steady state when its gradient is smaller than this,
        relative to the gradient at the start. By default 1e-3. With a `PIDController` of your
        own, the flow ends when that settles. With a constant step size there is no such test.
    - `max_steps`: how many steps the flow may take. If it needs more, that is an error, or a
        `result`.
    - `reduction`: `"sum"` (default): each example follows its own gradient, with its own step
        sizes and its own end, so the answer does not depend on the rest of the batch.
        `"mean"`: the whole batch is one system that follows the gradient of its mean energy,
        which is slower by the size of the batch. Published experiments did that.
    - `throw`: whether divergence and `max_steps` raise an error.
    - `progress_meter`: a Diffrax progress meter.

    **Example:**

    ```python
    import jax.random as jr

    import jpc

    model = jpc.make_mlp(jr.key(0), 4, 8, 3, 2, "tanh")
    x, y = jr.normal(jr.key(1), (5, 4)), jr.normal(jr.key(2), (5, 2))
    energy = jpc.PCEnergy(precision=[1.0, 1.0, 0.1])
    nodes, clamps = jpc.pose(energy, model, {0: x, 3: y})
    inferred = jpc.GradientFlow(t1=100.0)(energy, model, nodes, clamps)
    converged = inferred.result == jpc.RESULTS.successful
    ```
    """

    solver: Given[dfx.AbstractSolver] = dfx.Heun()
    t1: Given[Number] = 20.0
    dt0: Given[Number | None] = None
    controller: Given[dfx.AbstractStepSizeController | None] = None
    rtol: Given[Number | None] = None
    max_steps: Given[int] = eqx.field(static=True, default=100_000)
    reduction: Given[Literal["sum", "mean"]] = eqx.field(static=True, default="sum")
    throw: Given[bool] = eqx.field(static=True, default=True)
    progress_meter: Given[dfx.AbstractProgressMeter] = dfx.NoProgressMeter()

    def __check_init__(self):
        check_type("solver", self.solver, dfx.AbstractSolver, "diffrax.Heun()")
        kind = dfx.AbstractStepSizeController | None
        check_type("controller", self.controller, kind, "diffrax.PIDController(1e-3, 1e-3)")
        kind = dfx.AbstractProgressMeter
        check_type("progress_meter", self.progress_meter, kind, "diffrax.TqdmProgressMeter()")
        if self.solver.term_structure is not dfx.AbstractTerm:
            kind = type(self.solver).__name__
            raise ValueError(f"{kind} is no solver of one plain ODE, such as diffrax.Heun().")
        choice("reduction", self.reduction, ("sum", "mean"))
        check_positive("t1", self.t1)
        check_positive("dt0", self.dt0, none=True)
        check_step("dt0 (dt)", self.dt0, self.t1)
        check_positive("rtol", self.rtol, none=True)
        check_count("max_steps", self.max_steps)
        check_flags(throw=self.throw)
        fixed = isinstance(self.controller, dfx.ConstantStepSize)
        if self.dt0 is None and fixed:
            raise ValueError(
                f"{type(self.controller).__name__} needs a step size: give dt, or use "
                "diffrax.PIDController."
            )
        placed = isinstance(self.controller, dfx.StepTo)
        if placed:
            _check_steps(self.controller, self.t1, self.dt0)
        if not (isinstance(self.solver, dfx.AbstractAdaptiveSolver) or fixed or placed):
            raise ValueError(
                f"{type(self.solver).__name__} has no error estimate to adapt a step size with: "
                "give stepsize_controller=diffrax.ConstantStepSize() and dt, or use "
                "diffrax.Heun()."
            )

    @method
    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        check_free(nodes)
        if record is not None and record.ts is not None:
            nodes = until(self.t1, record.ts, nodes)
        integrate = self._apart if self.reduction == "sum" else self._together
        end, result, stats, trajectory = integrate(energy, params, nodes, clamps, record)
        named: Any = dict(throw=self.throw, trajectory=trajectory)
        return finish(energy, params, nodes, end, clamps, result, stats, **named)

    def _apart(self, energy, params, nodes, clamps, record):
        def one(nodes, clamps):
            state, unpack = flatten(nodes)
            potential = lambda z: energy.example(params, unpack(z), clamps)
            keep = record and (lambda z: record.fn(params, unpack(z), clamps))
            end, ended, result, stats, way = self._solve(potential, state, record, keep)
            stats["gradient_norm"] = _relative(ended, end)
            return unpack(end), result, stats, way

        end, result, stats, way = jax.vmap(one)(nodes, clamps)
        if way is None:
            return end, result, stats, None
        *way, length = way
        ts, values = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), way)
        return end, result, stats, Trajectory(ts, values, jnp.max(length))

    def _together(self, energy, params, nodes, clamps, record):
        state = jax.vmap(lambda z: ravel_pytree(z)[0])(nodes)
        unpack = jax.vmap(flatten(jax.tree.map(lambda z: z[0], nodes))[1])
        potential = lambda z: energy(params, unpack(z), clamps)
        keep = record and (lambda z: jax.vmap(ft.partial(record.fn, params))(unpack(z), clamps))
        end, ended, *how, way = self._solve(potential, state, record, keep)
        batch = len(state)
        result, stats = jax.tree.map(lambda x: jnp.broadcast_to(x, (batch,)), how)
        stats["gradient_norm"] = batch * jax.vmap(_relative)(ended, end)
        end = unpack(end)
        if way is None:
            return end, result, stats, None
        ts, values, length = way
        ts = jnp.broadcast_to(ts[:, None], (*ts.shape, batch))
        return end, result, stats, Trajectory(ts, values, length)

    def _solve(self, potential: Callable[[Array], Scalar], state: Array, record, keep):
        """The flow of one system: its end, the gradient there, how it ended, and what was kept of
        the way. Its nodes are one array, since a solver does a dozen small things to each.
        """
        downhill = jax.jit(lambda z: -jax.grad(potential)(z))  # It is traced once.
        field = lambda t, z, args: downhill(z)
        speed = field(None, state, None)
        controller, steady, curvature = self._tolerances(field, state, speed)
        solver, event = self._watch(speed, steady, curvature)
        time = ft.partial(as_precise, state)
        max_steps, subs = self.max_steps, [dfx.SubSaveAt(t1=True)]
        if record is not None:
            steps = record.ts is None
            max_steps = min(max_steps, record.length) if steps else max_steps
            fn = lambda t, z, args: keep(z)
            ts = None if steps else time(jnp.minimum(record.ts, self.t1))
            subs.append(dfx.SubSaveAt(t0=steps, steps=steps, ts=ts, fn=fn))
        solution = dfx.diffeqsolve(
            dfx.ODETerm(field),
            solver,
            t0=time(0.0),
            t1=time(self.t1),
            dt0=time(self.dt0),
            y0=state,
            saveat=dfx.SaveAt(subs=subs, solver_state=True),
            stepsize_controller=controller,
            event=event,
            max_steps=max_steps,
            throw=False,
            progress_meter=self.progress_meter,
        )
        (t1, *ts), (end, *ways) = cast(Any, (solution.ts, solution.ys))
        t1, end = (jnp.squeeze(last, axis=0) for last in (t1, end))
        attempts, taken = (solution.stats[k] for k in ("num_steps", "num_accepted_steps"))
        stats = {"steps": taken, "evaluations": 1 + attempts * self._cost(), "t1": t1}
        stats["rejected"] = attempts - taken
        way = _without_padding(ts[0], ways[0], keep(state)) if ways else None
        result = _translate(solution.result)
        if isinstance(solver, Stages):
            ended, _, descent = cast(Any, solution.solver_state)
            result = RESULTS.where(futile(descent), RESULTS.hopping, result)
        else:
            ended = field(None, end, None)
        result = RESULTS.where(rms(ended) <= steady, RESULTS.successful, result)
        return end, ended, result, stats, way

    def _watch(self, speed: Array, steady: Scalar, curvature: Any) -> tuple:
        """The solver, and an event that says what it does not see itself."""
        looks = self._looks()
        if self._is_explicit():
            begun = rms(speed) < steady
            event = dfx.Event(lambda t, y, args, **_: begun)
            solver = Stages(cast(Any, self.solver), speed, steady if looks else None, curvature)
        else:
            event = dfx.Event(dfx.steady_state_event(0.0, cast(Any, steady), optx.rms_norm))
            solver = self.solver
        return solver, event if looks else None

    def _tolerances(self, field, state, speed) -> tuple[Any, Scalar, Scalar | None]:
        """The controller, the gradient below which a state is steady, and the largest curvature,
        if it is known. Around a steady state the step size stays at the limit of stability, and
        the gradient at about the controller's tolerance times the largest curvature: to ask for
        less is to hop there for ever.
        """
        size, start = optx.rms_norm(state), optx.rms_norm(speed)
        rounding = 10 * jnp.finfo(start.dtype).eps * size + jnp.finfo(start.dtype).tiny
        steady = (1e-3 if self.rtol is None else self.rtol) * start + rounding
        if self.controller is None:
            curvature = jnp.maximum(_curvature(field, state, speed), 1.0)
            return dfx.PIDController(rtol=0.0, atol=0.5 * steady / curvature), steady, curvature
        if self.rtol is None and isinstance(self.controller, dfx.PIDController):
            settled = 2 * (self.controller.atol + self.controller.rtol * size)
            return self.controller, jnp.minimum(0.1 * start + rounding, settled), None
        return self.controller, rounding if self.rtol is None else steady, None

    def _is_explicit(self) -> bool:
        tableau = getattr(self.solver, "tableau", None)
        return isinstance(self.solver, dfx.AbstractERK) and isinstance(tableau, dfx.ButcherTableau)

    def _looks(self) -> bool:
        """Whether it looks for a steady state after each step."""
        return self.rtol is not None or not isinstance(self.controller, dfx.ConstantStepSize)

    def _cost(self) -> int:
        """Gradients per step. An explicit method looks for a steady state at no cost."""
        if not self._is_explicit():
            return 1 + self._looks()
        tableau = cast(Any, self.solver).tableau
        return tableau.num_stages - tableau.fsal


def _check_steps(controller: Any, t1: Any, dt0: Any) -> None:
    """That steps which a controller knows beforehand are those of the flow."""
    if dt0 is not None:
        raise ValueError("controller is a diffrax.StepTo, which has its own steps: leave dt0 out.")
    if any(isinstance(x, Tracer) for x in (controller.ts, t1)):
        return
    first, last = np.asarray(controller.ts)[[0, -1]]
    if first != 0 or not np.isclose(last, t1):
        raise ValueError(
            f"The times of controller=diffrax.StepTo(ts) must go from 0 to t1, which is {t1:g}, "
            f"got {first:g} to {last:g}."
        )


def _relative(gradient: Array, state: Array) -> Scalar:
    size = rms(state)
    return rms(gradient) / jnp.where(size > 0, size, 1)


def _curvature(field, state: Array, direction: Array) -> Scalar:
    """The largest curvature of an energy, by a few power iterations from a direction."""
    _, product = jax.linearize(lambda z: field(None, z, None), state)

    def iterate(_, found):
        direction, size = found
        direction = product(direction / jnp.where(size > 0, size, 1.0))
        return direction, optx.rms_norm(direction)

    return jax.lax.fori_loop(0, 8, iterate, (direction, optx.rms_norm(direction)))[1]


def _without_padding(ts: Array, values: PyTree, first: PyTree) -> tuple[Array, PyTree, Array]:
    # Diffrax pads with infinities what it did not reach, which is everything if the start is
    # a steady state. Keep the last value instead.
    length = jnp.sum(jnp.isfinite(ts))
    index = jnp.minimum(jnp.arange(ts.shape[0]), length - 1)
    kept = jax.tree.map(lambda x, y: jnp.where(length == 0, y, x[index]), values, first)
    return jnp.where(length == 0, 0.0, ts[index]), kept, jnp.maximum(length, 1)


def _translate(result: dfx.RESULTS) -> RESULTS:
    ended = RESULTS.where(
        result == dfx.RESULTS.successful, RESULTS.stopped_early, RESULTS.max_steps_reached
    )
    return RESULTS.where(result == dfx.RESULTS.event_occurred, RESULTS.successful, ended)
