r"""Iterations of a batch with a shared matrix, until its examples have converged.

Each proposes a step (see `chords.py`). As the matrix is not quite that of the example, the steps
are mixed: the next $\lambda$ is a step from the mixture of the last three for which the step is
shortest, by a linear model of it (Anderson's method). Two or three iterations are enough in most
networks, and a few examples take more.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._energy import ravel
from .._types import Number
from .chords import Chords, Found
from .relax import at_least, norm, pick

# How fast changes shrink, at most and at least, as far as is believed: strictly, and in training.
_STRICT, _RATIOS = (0.2, 0.9), (0.1, 0.9)
_FAR = 10.0  # A change so many times what there is leads nowhere.
# Parts of the tolerance, strictly and in training, to which an example goes on while it waits.
_SPARES = 1e-3, 0.1
_RIDGE = 1e-6
_INNER = 5, 2  # Newton's steps for a loss that is not a square, at first and then.


class _Step(NamedTuple):
    r"""A value of $\lambda$, and the correction that was proposed there."""

    lam: Array
    step: Array


class _Point(NamedTuple):
    r"""The coordinates `v`, $\lambda$, and the free states `z` at which one follows from the
    other. `sizes` are those of $\lambda$ and of the errors $P v$, and `changes` how much the last
    iteration changed of each: what `part` of them. `gap` is how far they are off after it, by an
    estimate.
    """

    v: dict
    z: dict
    lam: Array
    changes: Array
    sizes: Array
    part: Array
    gap: Array


class Way(NamedTuple):
    """Where the iterations of an example are. Of all points the `best` is the one after the
    smallest change.
    """

    now: _Point
    best: _Point
    last: tuple[_Step, _Step]
    rounding: Array
    taken: Array

    def over(self, rtol: Number) -> Array:
        """Whether it has converged, or will not."""
        return (self.now.gap <= rtol) | (self.now.part >= _FAR)


def begin(chords: Chords, v: dict) -> Way:
    """The first iteration, from a feedforward pass."""
    yhat, unravel, pull, z = chords.predict(v)
    nothing, never = jnp.zeros_like(yhat), jnp.asarray(jnp.inf, yhat.dtype)
    here = _Step(nothing, chords.propose(unravel, yhat, nothing, _INNER[0]))
    (delta,) = pull(unravel(here.step))
    sizes, one = jnp.stack([norm(here.step), norm(ravel(delta))]), jnp.ones_like(never)
    new = _move(chords, z, delta, here.step, sizes, sizes, one, never)
    rounding = chords.rounding(unravel, yhat)
    return Way(new, new, (here, _Step(nothing, nothing)), rounding, jnp.asarray(1))


def go_on(chords: Chords, way: Way) -> Way:
    """Another one, if it is not over."""
    now = way.now
    yhat, unravel, pull, z = chords.predict(now.v)
    here = _Step(now.lam, chords.propose(unravel, yhat, now.lam, _INNER[1]))
    lam = _anderson((here, *way.last), way.taken)
    (delta,) = pull(unravel(lam))
    step = jnp.maximum(norm(here.step) - way.rounding, 0)
    moved = norm(ravel(delta) - chords.unfolded.own(now.v))
    changes, sizes = jnp.stack([step, moved]), jnp.stack([norm(lam), norm(ravel(delta))])
    part = _part(changes, sizes, chords.strict)
    gap = _left(part, now.part, _STRICT if chords.strict else _RATIOS)
    new = _move(chords, z, delta, lam, changes, sizes, part, gap)
    best = pick(part <= way.best.part, new, way.best)
    new = Way(new, best, (here, way.last[0]), way.rounding, way.taken + 1)
    spare = _SPARES[0] if chords.strict else _SPARES[1]
    return pick(way.over(spare * chords.rtol), way, new)


def finish(chords: Chords, way: Way) -> Found:
    """What was found. If the iterations did not come together, the best point counts."""
    best, gap = way.best, way.now.gap
    unravel = chords.unravel(best.v)
    delta = jax.tree.map(jnp.multiply, best.v, chords.unfolded.weights())
    steady, held = gap <= chords.rtol, jnp.asarray(False)
    gap = jnp.where(steady, gap, jnp.maximum(gap, best.part))
    z = chords.given | best.z
    return Found(best.v, z, delta, unravel(best.lam), gap, way.taken, steady, held)


def until_all(
    ways: Way, step: Callable[[Way], Way], rtol: Number, most: int, *, least: int = 1
) -> Way:
    """Iterations of a batch until no example has anything left to do."""

    def unfinished(ways: Way) -> Bool[Array, ""]:
        over = jax.vmap(lambda way: way.over(rtol))(ways)
        taken = jnp.max(ways.taken)
        waits = jnp.all(jax.vmap(lambda way: way.over(_SPARES[0] * rtol))(ways))
        return (taken < most) & ~jnp.all(over) | ((taken < least) & ~waits)

    return jax.lax.while_loop(unfinished, step, ways)


def until_together(ways: Way, step: Callable[[Way], Way], rtol: Number, most: int) -> Way:
    """Iterations of a batch until its errors are off by less than this, all together: an example
    with large errors, from which there is much to learn, counts more than others.
    """

    def go_on(state: tuple) -> tuple:
        ways, last, _ = state
        ways = step(ways)
        near = (ways.now.part < _FAR)[:, None]
        whole = lambda x: jnp.sum(x, axis=0, where=near)
        part = _part(whole(ways.now.changes), whole(ways.now.sizes), strict=False)
        return ways, part, _left(part, last, _RATIOS)

    def unfinished(state: tuple) -> Bool[Array, ""]:
        ways, _, gap = state
        return (gap > rtol) & (jnp.max(ways.taken) < most)

    one = jnp.ones((), ways.now.gap.dtype)
    return jax.lax.while_loop(unfinished, go_on, (ways, one, jnp.inf * one))[0]


def _part(changes: Array, sizes: Array, strict: bool) -> Array:
    r"""How much changed of $\lambda$ and of the errors of the states: of each of them, or of both
    in one vector.
    """
    if strict:
        return jnp.max(changes / at_least(sizes))
    return norm(changes) / at_least(norm(sizes))


def _left(part: Array, last: Array, ratios: tuple[float, float]) -> Array:
    """Changes that shrink by a constant factor leave what remains of a geometric series."""
    ratio = jnp.clip(part / at_least(last), *ratios)
    return part * ratio / (1 - ratio)


def _move(chords: Chords, z: dict, delta: dict, lam: Array, *measured: Array) -> _Point:
    v = jax.tree.map(jnp.divide, delta, chords.unfolded.weights())
    return _Point(v, {name: z[name] for name in v}, lam, *measured)


def _anderson(steps: tuple[_Step, ...], taken: Array) -> Array:
    r"""The next $\lambda$: a step from the mixture of the last three for which it is shortest."""
    now, one, two = steps
    f, x = (now.step - one.step, one.step - two.step), (now.lam - one.lam, one.lam - two.lam)
    a, b, c = jnp.vdot(f[0], f[0]), jnp.vdot(f[0], f[1]), jnp.vdot(f[1], f[1])
    p, q = jnp.vdot(f[0], now.step), jnp.vdot(f[1], now.step)
    determinant = a * c * (1 + _RIDGE) - b * b
    both = jnp.stack([c * p - b * q, a * q - b * p]) / at_least(determinant)
    first = jnp.stack([p / at_least(a), jnp.zeros_like(p)])
    mixed = jnp.where(taken > 1, both, jnp.where(taken > 0, first, 0))
    return now.lam + now.step - mixed[0] * (x[0] + f[0]) - mixed[1] * (x[1] + f[1])
