r"""Descent of one example in the coordinates of its errors, by limited-memory BFGS.

The matrix that the memory corrects is that of Gauss and Newton, $P + J^T H J$, with the Jacobian
$J = \partial \hat y / \partial v$ of the start and the curvature $H$ of the loss where the example
is now. Its inverse takes a solve of the size of what is given,

$$M = P^{-1} - P^{-1} J^T K J P^{-1}, \qquad K = (I + H A)^{-1} H, \qquad A = J P^{-1} J^T,$$

so that $M$ takes care of what is stiff, and the memory of what is nonlinear. A step is one
forward and one backward pass.
"""

import functools as ft
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool

from .._device import rounds_products
from .._energy import Unfolded, ravel
from .._flat import flatten
from .._solve import solve
from .._types import Number

_MEMORY = 10
_PATIENCE = 10
_REFRESH = 20
_SPLITS = 2  # The second one makes up for the rounding of the first.


class Relaxed(NamedTuple):
    r"""Of one example: the coordinates, how far they are off relatively, the errors $\lambda$ of
    what is given, the energy, and the number of steps.
    """

    v: dict
    gap: Array
    lam: dict
    energy: Array
    steps: Array


class _Point(NamedTuple):
    r"""Somewhere on the way. `move` is minus the step of Gauss and Newton from there, and
    $\lambda$ the error of what is given after it. The error before it, $g$, is a small
    difference of large numbers where $S$ is large.
    """

    x: Array
    energy: Array
    gradient: Array
    lam: Array
    inverses: "_Inverses"
    move: Array
    blur: Array


class _Inverses(NamedTuple):
    """$S^{-1}$ and $K = S^{-1} H$ at some point."""

    S: Array
    K: Array


class _Problem(NamedTuple):
    r"""One example's energy in one vector. `G` is the inverse of $A$, about. The states are
    rounded, too, and a deep network makes that larger: `shake` is what it does to $\hat y$.
    `noise` is what all rounding does to a step.
    """

    unfolded: Unfolded
    given: dict
    unravel: Callable[[Array], dict]
    P: Array
    W: Array
    J: Array
    G: Array
    shake: Array
    noise: Array

    @staticmethod
    def of(unfolded: Unfolded, x: Array, unravel: Callable, given: dict, dense: bool):
        v = unravel(x)
        spread = jax.tree.map(lambda p, z: jnp.broadcast_to(p, z.shape), unfolded.weights(), v)
        P = ravel(spread).astype(x.dtype)
        predicted, z = unfolded.predict(v, given)
        unravel_yhat = ravel_pytree(predicted)[1]
        yhat, pull = jax.vjp(lambda x: ravel(unfolded.predict(unravel(x), given)[0]), x)
        rows = _identity(yhat)[: yhat.size if dense else 0]
        J = jax.vmap(lambda row: pull(row)[0])(rows)
        W = 1 / jnp.where(P > 0, P, 1)
        loss = lambda y: unfolded.loss(unravel_yhat(y), given)
        rounding, shake = rounding_of(loss, yhat), jnp.zeros_like(yhat)
        one, G = _identity(yhat), J[:, :0]
        if dense:
            H, size = jax.hessian(loss)(yhat), ravel({name: z[name] for name in v})
            shake = product_eps(yhat.dtype) * jnp.linalg.norm(J * size[None], axis=1)
            A = dot(J * W[None], J.T)
            rounding = solve(one + dot(H, A), rounding + dot(H, shake))
            G = solve(A + at_least(jnp.finfo(A.dtype).eps * jnp.trace(A)) * one, one)
        noise = W * pull(rounding)[0]
        noise = jnp.sqrt(dot(noise, noise / W))
        return _Problem(unfolded, given, unravel, P, W, J, G, shake, noise)

    def at(self, x: Array) -> _Point:
        def predict(x):
            predicted, _ = self.unfolded.predict(self.unravel(x), self.given)
            return ravel_pytree(predicted)[0], predicted

        yhat, pull, predicted = jax.vjp(predict, x, has_aux=True)
        loss = lambda y: self.unfolded.loss(ravel_pytree(predicted)[1](y), self.given)
        value, slope = jax.value_and_grad(loss)(yhat)
        own = self.P * x
        gradient = own - pull(-slope)[0]
        energy = 0.5 * dot(x, own) + value
        blur = blur_of(energy, loss, yhat, self.unfolded.quadratic(self.given))
        if len(self.J) == 0:
            none = _Inverses(self.G, self.G)
            return _Point(x, energy, gradient, -slope, none, self.W * gradient, blur)
        H, A = jax.hessian(loss)(yhat), dot(self.J * self.W[None], self.J.T)
        blur = blur + dot(jnp.abs(slope) + 0.5 * dot(jnp.abs(H), self.shake), self.shake)
        one = _identity(yhat)
        error = -slope + dot(H, dot(self.J, self.W * own))
        solved = solve(one + dot(H, A), jnp.column_stack([error, one, H]))
        lam, inverses = solved[:, 0], _Inverses(*jnp.split(solved[:, 1:], 2, axis=1))
        move = self.precondition(gradient, inverses)
        return _Point(x, energy, gradient, lam, inverses, move, blur)

    def precondition(self, q: Array, inverses: _Inverses) -> Array:
        r"""$M q$. Where $A$ is large, next to nothing is left of a $q = J^T c$: exactly,
        $M J^T c = P^{-1} J^T S^{-1} c$, and a difference would be rounding. So this is used for
        nearly all of $q$ that is like that, and the difference for the rest.
        """
        if len(self.J) == 0:
            return self.W * q
        c = jnp.zeros_like(self.J[:, 0])
        for _ in range(_SPLITS):
            part = dot(self.G, dot(self.J, self.W * q))
            q, c = q - dot(part, self.J), c + part
        rest = dot(inverses.K, dot(self.J, self.W * q))
        return self.W * (q + dot(dot(inverses.S, c) - rest, self.J))

    def gap(self, point: _Point, *steps: Array) -> Array:
        """How far off a point is, by steps that may be taken from there, and rounding aside."""
        size = lambda x: jnp.sqrt(dot(x, x / self.W))
        left = ft.reduce(jnp.maximum, map(size, steps)) - self.noise
        # A state with a flat prior is no error: it counts like one of size one at most.
        errors, flat = jnp.where(self.P > 0, point.x, 0), jnp.where(self.P > 0, 0, point.x)
        whole = jnp.hypot(size(errors), jnp.minimum(norm(flat), 1))
        return jnp.maximum(left, 0) / at_least(whole)


class _Memory(NamedTuple):
    """Steps and changes of the gradient, the last one first."""

    s: Array
    y: Array
    rho: Array

    def push(self, s: Array, y: Array) -> "_Memory":
        curvature = dot(s, y)
        okay = curvature > 1e-10 * jnp.linalg.norm(s) * jnp.linalg.norm(y)
        add = lambda old, new: jnp.where(okay, jnp.concatenate([new[None], old[:-1]]), old)
        return _Memory(add(self.s, s), add(self.y, y), add(self.rho, 1 / curvature))

    def direction(self, gradient: Array, inverse: Callable[[Array], Array]) -> Array:
        """The two loops of limited-memory BFGS."""

        def down(q, pair):
            s, y, rho = pair
            a = rho * dot(s, q)
            return q - a * y, a

        def up(r, pair):
            s, y, rho, a = pair
            return r + s * (a - rho * dot(y, r)), None

        q, a = jax.lax.scan(down, gradient, tuple(self))
        return -jax.lax.scan(up, inverse(q), (*self, a), reverse=True)[0]


class Progress(NamedTuple):
    """For how many steps neither the energy nor the gap has come down by much."""

    energy: Array
    gap: Array
    stalled: Array

    def update(self, energy: Array, gap: Array) -> "Progress":
        lower = energy < self.energy - 1e-3 * jnp.abs(self.energy)
        better = lower | (gap < 0.5 * self.gap)
        new = Progress(energy, gap, jnp.asarray(0))
        return pick(better, new, self._replace(stalled=self.stalled + 1))


def relax(
    unfolded: Unfolded,
    v: dict,
    given: dict,
    done: Bool[Array, ""],
    *,
    rtol: Number,
    max_steps: int,
    dense: bool,
) -> Relaxed:
    """Descends from `v` until the errors are off by less than `rtol`, relatively, or nothing
    comes of it any more. With `dense` there is a matrix of Gauss and Newton, which is made anew
    where the descent by the last one ended: the last of them certifies the answer.
    """

    def descend(state):
        x, memory, _, _, _, steps, progress, _ = state
        problem = _Problem.of(unfolded, x, unravel, given, dense)
        point = problem.at(x)
        towards = _aim(problem, point, memory)
        gap = problem.gap(point, point.move if dense else towards)
        progress = progress.update(point.energy, gap)
        over = done | (gap <= rtol) | (steps >= max_steps) | (progress.stalled > 2)
        inner = Progress(point.energy, gap, jnp.asarray(0))
        start = (point, memory, towards, jnp.ones_like(gap), gap, steps, inner)
        going = lambda state: (
            ~over
            & (state[4] > 0.5 * rtol)
            & (state[5] < jnp.minimum(steps + _REFRESH, max_steps))
            & (state[6].stalled < _PATIENCE)
        )
        end, memory, *_, steps, _ = jax.lax.while_loop(going, ft.partial(_step, problem), start)
        return end.x, memory, gap, point.lam, point.energy, steps, progress, over

    x, unravel = flatten(v)
    yhat, unravel_lam = ravel_pytree(unfolded.predict(v, given)[0])
    empty = jnp.zeros((_MEMORY, x.size), x.dtype)
    never = jnp.asarray(jnp.inf, x.dtype)
    memory, progress = _Memory(empty, empty, empty[:, 0]), Progress(never, never, jnp.asarray(0))
    state = (x, memory, never, jnp.zeros_like(yhat), never, jnp.asarray(0), progress, done)
    state = jax.lax.while_loop(lambda state: ~state[-1], descend, state)
    x, _, gap, lam, energy, steps, *_ = state
    return Relaxed(unravel(x), gap, unravel_lam(lam), energy, steps)


def _step(problem: _Problem, state: tuple) -> tuple:
    point, memory, towards, length, _, steps, progress = state
    new = problem.at(point.x + length * towards)
    slope = dot(point.gradient, towards)
    okay = new.energy <= point.energy + 1e-4 * length * slope + point.blur
    shorter = _shorten(length, slope, new.energy - point.energy)
    pushed = memory.push(new.x - point.x, new.gradient - point.gradient)
    point, memory = pick(okay, (new, pushed), (point, memory))
    towards = jnp.where(okay, _aim(problem, point, memory), towards)
    length, gap = jnp.where(okay, 1.0, shorter), problem.gap(point, point.move, towards)
    return point, memory, towards, length, gap, steps + 1, progress.update(point.energy, gap)


def _aim(problem: _Problem, point: _Point, memory: _Memory) -> Array:
    """Where to go from a point."""
    towards = memory.direction(point.gradient, lambda q: problem.precondition(q, point.inverses))
    downhill = dot(towards, point.gradient) < 0
    return jnp.where(downhill & jnp.all(jnp.isfinite(towards)), towards, -point.move)


def _shorten(length: Array, slope: Array, rise: Array) -> Array:
    """Where a parabola through the last try has its minimum, within limits."""
    ratio = -0.5 * slope * length / (rise - slope * length)
    return length * jnp.where(jnp.isfinite(ratio), jnp.clip(ratio, 0.1, 0.5), 0.1)


def rounding_of(loss: Callable[[Array], Array], yhat: Array) -> Array:
    r"""What rounding of the predictions may do to the error of what is given, $-\nabla$ loss."""
    slope = jax.grad(loss)
    (change,) = jax.jvp(slope, (yhat,), (yhat,))[1:]
    terms = jnp.abs(slope(jnp.zeros_like(yhat)))  # As large as what the error is a difference of.
    return 8 * product_eps(yhat.dtype) * change + 4 * jnp.finfo(yhat.dtype).eps * terms


def blur_of(energy: Array, loss: Callable[[Array], Array], yhat: Array, square: bool) -> Array:
    """Energies that differ by less than this are the same but for rounding: a prediction is
    rounded, and a loss that is no square may be a small difference of large predictions.
    """
    eps, size = jnp.finfo(yhat.dtype).eps, norm(yhat)
    slope = norm(jax.grad(loss)(yhat)) + norm(rounding_of(loss, yhat))
    terms = jnp.abs(energy) + (0 if square else size)
    return 4 * eps * terms + 4 * product_eps(yhat.dtype) * size * slope


def product_eps(dtype: Any) -> float:
    """What products of matrices are rounded to."""
    if dtype == jnp.float32 and rounds_products():
        return 2.0**-10
    return float(jnp.finfo(dtype).eps)


def _identity(yhat: Array) -> Array:
    return jnp.eye(yhat.size, dtype=yhat.dtype)


def dot(a: Array, b: Array) -> Array:
    """A product of small matrices or vectors, as precise as it can be."""
    return jnp.matmul(a, b, precision="highest")


def norm(x: Array) -> Array:
    return jnp.linalg.norm(x)


def at_least(size: Array) -> Array:
    """For a size to divide by."""
    return jnp.maximum(size, jnp.finfo(size.dtype).tiny)


def pick(mask: Array, one, other):
    """One tree or the other, for each example."""
    choose = lambda a, b: jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)
    return jax.tree.map(choose, one, other)
