r"""Iterations of a batch with a shared matrix, until its examples have converged.

An iteration (see `chords.py`) makes a new point $(v', \lambda')$ of $(v, \lambda)$. The next one
begins at a mixture of the last three: the one for which the step to the new point would be
shortest, if steps were linear in their points (Anderson's method). The length of a step is that of
its errors $v$, weighted by their precisions. For two things make iterations slow: the matrix is
that of other examples, and the network bends. The second cannot be seen in the small space of
$\lambda$. An iteration from a point of higher energy is taken back, and a shorter step tried.

All errors of an example are in one vector here: what is done to it is compiled once, not once a
layer.
"""

import functools as ft
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool

from .._energy import ravel
from .._types import Number
from .chords import Chords, Found
from .relax import at_least, norm, pick, product_eps

# What is left after a step, as a part of it, at least: strictly, in training, and where there are
# kinks, between whose sides iterations may hop for ever. And at most.
_STRICT, _RELAXED, _HOPPING, _SLOW = 0.25, 0.1, 0.5, 9.0
_SHORTER = 0.25  # Of a step that led to a higher energy.
# Off by more than this, and than `rtol`, an example learns from its first iteration. (Where
# units are held the estimate counts at least half of a step, not a tenth of it.)
_LOST = dict(none=0.1, held=0.5, rectifiers=0.0, others=0.0)
_PATIENCE, _FALLS = 8, 0.8  # Iterations of a batch; the part that two more leave, at most.
_FAR = 0.01  # Off by more than this after that, an example may end up where others lead it.
_FLAT = 1e-3  # Energies that differ by a smaller part count as the same.
# Parts of the tolerance, strictly and in training, to which an example goes on while it waits.
_SPARES = 1e-3, 0.1
_INNER = 5, 2  # Newton's steps for a loss that is not a square, at first and then.


class _Pair(NamedTuple):
    r"""Coordinates `v` and $\lambda$, or a difference of such."""

    v: Array
    lam: Array

    def plus(self, other: "_Pair", times: Number = 1.0) -> "_Pair":
        return jax.tree.map(lambda a, b: a + times * b, self, other)

    def minus(self, other: "_Pair") -> "_Pair":
        return jax.tree.map(jnp.subtract, self, other)

    def sizes(self, precision: Array) -> Array:
        r"""Of $\lambda$, and of the errors $P v$."""
        return jnp.stack([norm(self.lam), norm(precision * self.v)])


class _Step(NamedTuple):
    """A point, and the step to the one that an iteration made of it."""

    at: _Pair
    step: _Pair


class _Try(NamedTuple):
    r"""The point to go on from, of which `sizes` are those of $\lambda$ and of the errors. `ratio`
    is how far what an iteration makes moves when its step gets shorter, as a part of that, and
    `gap` how far it is off, by an estimate.
    """

    at: _Pair
    sizes: Array
    ratio: Array
    gap: Array


class _Point(NamedTuple):
    """What was found from a point with errors `v`, states `z` and some energy; whether that of
    what was found is known to be `higher`.
    """

    found: _Pair
    v: Array
    z: dict
    energy: Array
    higher: Array


class Way(NamedTuple):
    """Where the iterations of an example are. `best` is what the last of them found whose point
    had no higher energy than the one before it, and `first` what was found from a feedforward
    pass. `last` are the two steps before, of which `known` have been taken.
    """

    now: _Try
    first: _Point
    best: _Point
    last: tuple[_Step, _Step]
    known: Array
    rounding: Array
    taken: Array

    def over(self, rtol: Number) -> Array:
        """Whether it has converged."""
        return self.now.gap <= rtol


def _vectors(chords: Chords, like: dict) -> tuple[Array, Callable[[Array], dict]]:
    """The precisions $P$ in one vector, and what makes such a vector what is like the states."""
    weights = chords.unfolded.weights()
    full = {n: jnp.broadcast_to(weights[n], z.shape).astype(z.dtype) for n, z in like.items()}
    return ravel_pytree(full)


def begin(chords: Chords, v: dict) -> Way:
    """The first iteration, from a feedforward pass."""
    yhat, unravel, pull, z, _ = chords.predict(v)
    precision, _ = _vectors(chords, v)
    at = _Pair(ravel(v), jnp.zeros_like(yhat))
    lam = chords.propose(unravel, yhat, at.lam, _INNER[0])
    made = _make(precision, pull, unravel, lam)
    step, (none, never) = made.minus(at), jnp.asarray([0.0, jnp.inf], yhat.dtype)
    energy, _ = _energy(chords, precision, at.v, unravel, yhat)
    states = {name: z[name] for name in v}
    point, sizes = _Point(made, at.v, states, energy, jnp.asarray(False)), made.sizes(precision)
    now = _Try(made, sizes, none, never)
    here, nothing = _Step(at, step), jax.tree.map(jnp.zeros_like, _Step(at, step))
    rounding = chords.rounding(unravel, yhat)
    return Way(now, point, point, (here, nothing), jnp.asarray(1), rounding, jnp.asarray(1))


def go_on(chords: Chords, way: Way) -> Way:
    """Another one, if it is not over."""
    at, (precision, states) = way.now.at, _vectors(chords, way.best.z)
    yhat, unravel, pull, z, predicted = chords.predict(states(at.v))
    lam = at.lam + chords.propose(unravel, yhat, at.lam, _INNER[1])
    here = _Step(at, _make(precision, pull, unravel, lam).minus(at))
    mixed = _mix(precision, (here, *way.last), way.known)
    sizes, rounding = mixed.sizes(precision), jnp.stack([way.rounding, 0 * way.rounding])
    changes = jnp.maximum(here.step.sizes(precision) - rounding, 0)
    ratio = _ratio(precision, here, way.last[0], sizes)
    gap = _part(changes, sizes, chords.strict) * _left(chords, ratio, way.now.ratio)
    v = ravel(chords.unfolded.held(states(at.v), predicted))
    energy, blur = _energy(chords, precision, v, unravel, yhat)
    z = {name: z[name] for name in way.best.z}
    goes = way._replace(
        now=_Try(mixed, sizes, ratio, gap),
        best=_Point(mixed, at.v, z, energy, jnp.asarray(False)),
        last=(here, way.last[0]),
        known=way.known + 1,
    )
    lower = energy <= way.best.energy + blur
    stays = way._replace(now=_back(way, gap), best=way.best._replace(higher=jnp.asarray(True)))
    new = pick(lower, goes, stays)._replace(taken=way.taken + 1)
    spare = _SPARES[0] if chords.strict else _SPARES[1]
    return pick(way.over(spare * chords.rtol), way, new)


def _make(precision: Array, pull: Callable, unravel: Callable, lam: Array) -> _Pair:
    r"""$v = P^{-1} J^T \lambda$."""
    (delta,) = pull(unravel(lam))
    return _Pair(ravel(delta) / precision, lam)


def _mix(precision: Array, steps: tuple[_Step, _Step, _Step], known: Array) -> _Pair:
    """What an iteration makes of the mixture of the last three points whose step is shortest."""
    now, one, two = steps
    (x, f), (y, g) = (
        (a.at.minus(b.at), a.step.minus(b.step)) for a, b in ((now, one), (one, two))
    )
    inner = lambda a, b: jnp.vdot(precision * a.v, b.v)
    a, b, c, p, q = inner(f, f), inner(f, g), inner(g, g), inner(f, now.step), inner(g, now.step)
    ridge = 1 + jnp.finfo(a.dtype).eps ** 0.5
    both = jnp.stack([c * p - b * q, a * q - b * p]) / at_least(ridge * a * c - b * b)
    first = jnp.stack([p / at_least(a), jnp.zeros_like(p)])
    by = jnp.where(known > 1, both, first)
    mixed = now.at.plus(now.step)
    for times, move, change in zip(by, (x, y), (f, g), strict=True):
        mixed = mixed.plus(move, -times).plus(change, -times)
    return mixed


def _ratio(precision: Array, now: _Step, last: _Step, sizes: Array) -> Array:
    """How far what is made has moved since the last iteration, as a part of how much its step has
    changed. At a fixed point there is no step, so as much of a step is left to go.
    """
    change = now.step.minus(last.step)
    made = now.at.minus(last.at).plus(change)
    relative = lambda pair: norm(pair.sizes(precision) / at_least(sizes))
    return relative(made) / at_least(relative(change))


def _back(way: Way, gap: Array) -> _Try:
    """A shorter step than the one that led up. What had been found is as close as it was said to
    be if the iteration from there, of which `gap` is the estimate, says so too.
    """
    base, one = way.last[0].at, jnp.ones_like(gap)
    at = base.plus(way.now.at.minus(base), _SHORTER)
    worse = jnp.maximum(way.now.gap, gap)
    return _Try(at, way.now.sizes, one, jnp.where(worse < 1, worse, one))


def _energy(
    chords: Chords, precision: Array, v: Array, unravel: Callable, yhat: Array
) -> tuple[Array, Array]:
    """At some coordinates, and by how much it may be higher than another one: close to an
    equilibrium there is no difference but rounding.
    """
    energy = 0.5 * jnp.vdot(v, precision * v) + chords.unfolded.loss(unravel(yhat), chords.given)
    eps = product_eps(yhat.dtype)
    return energy, _FLAT * jnp.abs(energy) + 8 * eps * norm(yhat) * (1 + norm(yhat))


def finish(chords: Chords, way: Way) -> Found:
    """What was found. If it is to be safe, an example whose iterations have not come together
    teaches what the first of them says: what it would learn if the network were linear around its
    feedforward pass. That is never large, however far off the others are.

    Where a network is very sensitive, errors that are right to a tolerance may make states of a
    much higher energy than those that they were found from. Then these are the better ones.
    """
    best, gap, (precision, states) = way.best, way.now.gap, _vectors(chords, way.best.z)
    if chords.safe:
        away = best.found.minus(way.first.found).sizes(precision)
        away = _part(away, best.found.sizes(precision), chords.strict)
        lost = jnp.maximum(_LOST[chords.kinks], chords.rtol)
        best = pick(gap <= lost, best, way.first)
        gap = jnp.where(gap <= lost, gap, gap + away)
    (v, lam), z, holds = best.found, best.z, bool(chords.unfolded.bends)
    ended = jnp.where(best.higher, best.v, v)
    if holds and chords.strict:
        settled, z = chords.settle(states(v), lam)
        ended = v = ravel(settled)
    rest = chords.unravel(z)(lam), gap, way.taken, jnp.asarray(holds)
    return Found(states(ended), chords.given | z, states(precision * v), *rest)


def until_all(
    ways: Way,
    step: Callable[[Way], Way],
    rtol: Number,
    most: int,
    *,
    least: int = 1,
    leaves: bool = False,
) -> Way:
    """Iterations of a batch until no example has anything left to do. If `leaves`, examples that
    are still far off after the first few take no more of them: where these end would depend on
    the examples that the matrix is from.
    """

    def go_on(ways: Way) -> Way:
        return pick(left(ways), ways, step(ways)) if leaves else step(ways)

    def left(ways: Way) -> Bool[Array, " examples"]:
        return (ways.taken >= _PATIENCE) & (ways.now.gap > _FAR) & leaves

    def unfinished(ways: Way) -> Bool[Array, ""]:
        over = jax.vmap(lambda way: way.over(rtol))(ways) | left(ways)
        taken = jnp.max(ways.taken)
        waits = jnp.all(jax.vmap(lambda way: way.over(_SPARES[0] * rtol))(ways))
        return (taken < most) & ~jnp.all(over) | ((taken < least) & ~waits)

    return jax.lax.while_loop(unfinished, go_on, ways)


def until_together(ways: Way, step: Callable[[Way], Way], rtol: Number, most: int) -> Way:
    """Iterations of a batch until its errors are off by less than this, all together: an example
    with large errors, from which there is much to learn, counts more than others. After the first
    few they also end if two of them leave nearly all of what was left.
    """

    def off(ways: Way) -> Array:
        sizes = jax.vmap(norm)(ways.now.sizes)
        return jnp.sum(jnp.minimum(ways.now.gap, 1) * sizes) / at_least(jnp.sum(sizes))

    def go_on(state: tuple) -> tuple:
        ways, gaps = step(state[0]), state[1]
        return ways, (off(ways), *gaps[:2])

    def unfinished(state: tuple) -> Bool[Array, ""]:
        ways, (gap, _, before) = state
        taken = jnp.max(ways.taken)
        falls = (gap <= _FALLS * before) | (taken < _PATIENCE)
        return (gap > rtol) & falls & (taken < most)

    never = jnp.full((), jnp.inf, ways.now.gap.dtype)
    return jax.lax.while_loop(unfinished, go_on, (ways, (off(ways), never, never)))[0]


def _part(changes: Array, sizes: Array, strict: bool) -> Array:
    r"""How much changed of $\lambda$ and of the errors of the states: of each of them, or of both
    in one vector.
    """
    if strict:
        return jnp.max(changes / at_least(sizes))
    return norm(changes) / at_least(norm(sizes))


def _left(chords: Chords, *ratios: Array) -> Array:
    """The part of a step that is left, by the slower of some ratios."""
    least = _STRICT if chords.strict else _RELAXED
    least = least if chords.kinks == "none" else _HOPPING
    return jnp.clip(ft.reduce(jnp.maximum, ratios), least, _SLOW)
