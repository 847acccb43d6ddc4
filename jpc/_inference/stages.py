import functools as ft
from typing import Any, ClassVar, cast

import diffrax as dfx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._types import Scalar

# Of its curvature. What bends more is a kink: no smooth energy does between two steps.
_KINK = 4.0
_FUTILE = 0.25


class Stages(dfx.AbstractAdaptiveSolver):
    r"""An explicit Runge-Kutta method for a gradient flow. It hands the gradient at the end of a
    step to the next one, whose first stage that is, so that to look for a steady state is free.

    At a kink of the energy, as rectifiers have, the gradient jumps. An error estimate is then as
    large as the step is long, however short it is, and steps would have to be very short. So the
    estimate counts a curvature of at most `curvature`, or a few times as much.

    An equilibrium at a kink has a gradient on either side, and a flow hops over it for ever. It
    has begun to when steps do not descend, though they are shorter than the curvature asks for.

    **Arguments:**

    - `method`: the Runge-Kutta method.
    - `first`: the gradient at the start, negative.
    - `steady`: the size of the gradient at which to stop; without one all steps are taken.
    - `curvature`: the largest of the energy, if it is known.
    """

    method: dfx.AbstractERK
    first: Array
    steady: Scalar | None
    curvature: Scalar | None

    term_structure: ClassVar[Any] = dfx.ODETerm
    interpolation_cls: ClassVar[Any] = property(lambda self: self.method.interpolation_cls)

    def order(self, terms):
        return self.method.order(terms)

    def init(self, terms, t0, t1, y0, args):
        return self.first, _dot(self.first), jnp.ones((), self.first.dtype)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        (speed, square, descent), tableau = solver_state, cast(Any, self.method.tableau)
        field, dt = ft.partial(terms.vf, t1, args=args), terms.contr(t0, t1)
        weigh = lambda weights, ks: sum(float(w) * k for w, k in zip(weights, ks, strict=True))
        ks, end, ended, bends = [dt * speed], y0, speed, []
        for row in tableau.a_lower:
            end = y0 + weigh(row, ks)
            ended = field(y=end)
            ks.append(dt * ended)
            bends.append(_dot(ended - speed) / _dot(end - y0))
        if not tableau.fsal:
            end = y0 + weigh(tableau.b_sol, ks)
            ended = field(y=end)
        error = weigh(tableau.b_error, ks)
        if self.curvature is not None:
            bend = jnp.sqrt(ft.reduce(jnp.maximum, bends))
            error = error * jnp.fmin(1.0, _KINK * self.curvature / bend)
        result, squares = dfx.RESULTS.successful, (square, _dot(ended))
        if self.steady is not None:
            descent = _descent(descent, dt, end - y0, speed, ended, squares)
            stop = (squares[1] < self.steady**2 * ended.size) | futile(descent)
            # Diffrax goes on after whatever it takes for a success.
            result = dfx.RESULTS.where(stop, dfx.RESULTS.internal_error, result)
        dense = dict(y0=y0, y1=end, k=jnp.stack(ks))
        return end, error, dense, (ended, squares[1], descent), result

    def func(self, terms, t0, y0, args):
        return terms.vf(t0, y0, args)


def futile(descent: Scalar) -> Bool[Array, ""]:
    return descent < _FUTILE


def rms(x: Array) -> Scalar:
    return jnp.sqrt(_dot(x) / x.size)


def _descent(
    before: Scalar, dt: Scalar, moved: Array, speed: Array, ended: Array, squares: Any
) -> Scalar:
    """How much of the descent that its gradient promises a step makes, on average over some ten of
    them; without those so long that it need not be much on a smooth energy.
    """
    made = _dot(speed + ended, moved) / (2 * dt * squares[0])
    turned = sum(squares) - 2 * _dot(speed, ended)
    short = jnp.square(dt) * turned < 0.25 * _dot(moved)
    return jnp.where(short, 0.9 * before + 0.1 * made, before)


def _dot(x: Array, y: Array | None = None) -> Scalar:
    return jnp.vdot(x, x if y is None else y, precision=jax.lax.Precision.HIGHEST)
