r"""Iterations of a batch with a shared matrix, until its examples have converged.

An iteration (see `chords.py`) makes a new point $(v', \lambda')$ of $(v, \lambda)$. The next one
begins at a mixture of the last three: the one for which the step to the new point would be
shortest, if steps were linear in their points (Anderson's method). The length of a step is that of
its errors $\delta = P v$. For two things make iterations slow: the matrix is that of other
examples, and the network bends. The second cannot be seen in the small space of $\lambda$. An
iteration from a point of higher energy is taken back, and a shorter step tried.

All errors of an example are in one vector here: what is done to it is compiled once, not once a
layer. Large batches spend much of their time on going through these vectors.
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
from .kinks import Kinks
from .relax import at_least, norm, pick, product_eps

# What is left after a step, as a part of it, at least: strictly, in training, and where there are
# kinks, between whose sides iterations may hop for ever. And at most.
_STRICT, _RELAXED, _HOPPING, _SLOW = 0.25, 0.1, 0.5, 9.0
_SHORTER = 0.25  # Of a step that led to a higher energy.
# Off by more than this, and than `rtol`, an example learns from its first iteration. (Where
# units are held the estimate counts at least half of a step, not a tenth of it.)
_LOST = dict(none=0.1, held=0.5, rectifiers=0.0, others=0.0)
_PATIENCE, _FALLS = 8, 0.8  # Iterations of a batch; the part that two more leave, at most.
_SOON = 4  # Iterations where there are kinks that cannot be held: what hops goes on hopping.
_FAR = 0.01  # Off by more than this after that, an example may end up where others lead it.
_FLAT = 1e-3  # Energies that differ by a smaller part count as the same.
# Parts of the tolerance, strictly and in training, to which an example goes on while it waits.
_SPARES = 1e-3, 0.1
_INNER = 5, 2  # Newton's steps for a loss that is not a square, at first and then.


class _Pair(NamedTuple):
    r"""Errors $\delta = P v$ and $\lambda$, or a difference of such."""

    delta: Array
    lam: Array

    def plus(self, other: "_Pair", times: Number = 1.0) -> "_Pair":
        return jax.tree.map(lambda a, b: a + times * b, self, other)

    def minus(self, other: "_Pair") -> "_Pair":
        return jax.tree.map(jnp.subtract, self, other)

    def sizes(self) -> Array:
        r"""Of $\lambda$ and of $\delta$."""
        return jnp.stack([norm(self.lam), norm(self.delta)])


class _Step(NamedTuple):
    r"""What an iteration made of a point, and the step that led there. `change` is the square of
    what its $\delta$ differs by from that of the step before.
    """

    made: _Pair
    step: _Pair
    change: Array

    @property
    def at(self) -> _Pair:
        return self.made.minus(self.step)


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
    r"""What was found from a point with errors `delta`, states `z` and some energy; whether that
    of what was found is known to be `higher`.
    """

    found: _Pair
    delta: Array
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
    r"""$P^{-1}$ in one vector, and what makes of a vector like $\delta$ the coordinates $v$."""
    weights = chords.unfolded.weights()
    full = {n: jnp.broadcast_to(1 / weights[n], z.shape).astype(z.dtype) for n, z in like.items()}
    inverse, unravel = ravel_pytree(full)
    return inverse, lambda delta: jax.tree.map(jnp.divide, unravel(delta), weights)


def begin(chords: Chords, v: dict) -> Way:
    """The first iteration, from a feedforward pass."""
    yhat, unravel, pull, z, _ = chords.predict(v)
    inverse, _ = _vectors(chords, v)
    at = _Pair(jnp.zeros_like(inverse), jnp.zeros_like(yhat))
    made = _make(pull, unravel, chords.propose(unravel, yhat, at.lam, _INNER[0]))
    none, never = jnp.asarray([0.0, jnp.inf], yhat.dtype)
    energy, _ = _energy(chords, inverse, at.delta, unravel, yhat)
    states = {name: z[name] for name in v}
    point, sizes = _Point(made, at.delta, states, energy, jnp.asarray(False)), made.sizes()
    now = _Try(made, sizes, none, never)
    here = _Step(made, made, none)
    nothing = jax.tree.map(jnp.zeros_like, here)
    rounding = chords.rounding(unravel, yhat)
    return Way(now, point, point, (here, nothing), jnp.asarray(1), rounding, jnp.asarray(1))


def go_on(chords: Chords, way: Way) -> Way:
    """Another one, if it is not over."""
    at, (one, two), (inverse, errors) = way.now.at, way.last, _vectors(chords, way.best.z)
    v = errors(at.delta)
    yhat, unravel, pull, z, predicted = chords.predict(v)
    made = _make(pull, unravel, at.lam + chords.propose(unravel, yhat, at.lam, _INNER[1]))
    step = made.minus(at)
    turned = step.minus(one.step)
    here = _Step(made, step, _product(turned, turned))
    mixed = _mix((here, one, two), way.known)
    sizes, rounding = mixed.sizes(), jnp.stack([way.rounding, 0 * way.rounding])
    moved = step.sizes()
    ratio = _ratio(made.minus(one.made), turned, sizes)
    gap = _part(jnp.maximum(moved - rounding, 0), sizes, chords.strict)
    gap = gap * _left(chords, ratio, way.now.ratio)
    there = chords.held(v, predicted, at.delta)
    energy, blur = _energy(chords, inverse, there, unravel, yhat)
    z = {name: z[name] for name in way.best.z}
    goes = way._replace(
        now=_Try(mixed, sizes, ratio, gap),
        best=_Point(mixed, there, z, energy, jnp.asarray(False)),
        last=(here, one),
        known=way.known + 1,
    )
    lower = energy <= way.best.energy + blur
    stays = way._replace(now=_back(way, gap), best=way.best._replace(higher=jnp.asarray(True)))
    new = pick(lower, goes, stays)._replace(taken=way.taken + 1)
    spare = _SPARES[0] if chords.strict else _SPARES[1]
    return pick(way.over(spare * chords.rtol), way, new)


def _make(pull: Callable, unravel: Callable, lam: Array) -> _Pair:
    r"""$\delta = J^T \lambda$."""
    (delta,) = pull(unravel(lam))
    return _Pair(ravel(delta), lam)


def _product(one: _Pair, other: _Pair) -> Array:
    return jnp.sum(one.delta * other.delta)


def _mix(steps: tuple[_Step, _Step, _Step], known: Array) -> _Pair:
    """What an iteration makes of the mixture of the last three points whose step is shortest."""
    now, one, two = steps
    f, g = now.step.minus(one.step), one.step.minus(two.step)
    a, b, c = now.change, _product(f, g), one.change
    p, q = _product(f, now.step), _product(g, now.step)
    ridge = 1 + jnp.finfo(a.dtype).eps ** 0.5
    both = jnp.stack([c * p - b * q, a * q - b * p]) / at_least(ridge * a * c - b * b)
    first = jnp.stack([p / at_least(a), jnp.zeros_like(p)])
    by = jnp.where(known > 1, both, first)
    mixed = now.made
    for times, (new, old) in zip(by, ((now, one), (one, two)), strict=True):
        mixed = mixed.plus(new.made.minus(old.made), -times)
    return mixed


def _ratio(made: _Pair, turned: _Pair, sizes: Array) -> Array:
    """How far what is `made` has moved since the last iteration, as a part of how much its step
    has `turned`. At a fixed point there is no step, so as much of a step is left to go.
    """
    relative = lambda pair: norm(pair.sizes() / at_least(sizes))
    return relative(made) / at_least(relative(turned))


def _back(way: Way, gap: Array) -> _Try:
    """A shorter step than the one that led up. What had been found is as close as it was said to
    be if the iteration from there, of which `gap` is the estimate, says so too.
    """
    base, one = way.last[0].at, jnp.ones_like(gap)
    at = base.plus(way.now.at.minus(base), _SHORTER)
    worse = jnp.maximum(way.now.gap, gap)
    return _Try(at, way.now.sizes, one, jnp.where(worse < 1, worse, one))


def _energy(
    chords: Chords, inverse: Array, delta: Array, unravel: Callable, yhat: Array
) -> tuple[Array, Array]:
    """With some errors, and by how much it may be higher than another one: close to an
    equilibrium there is no difference but rounding.
    """
    energy = 0.5 * jnp.sum(delta * (delta * inverse))
    energy = energy + chords.unfolded.loss(unravel(yhat), chords.given)
    eps = product_eps(yhat.dtype)
    return energy, _FLAT * jnp.abs(energy) + 8 * eps * norm(yhat) * (1 + norm(yhat))


def finish(chords: Chords, way: Way) -> Found:
    """What was found. If it is to be safe, an example whose iterations have not come together
    teaches what the first of them says: what it would learn if the network were linear around its
    feedforward pass. That is never large, however far off the others are.

    Where a network is very sensitive, errors that are right to a tolerance may make states of a
    much higher energy than those that they were found from. Then these are the better ones.
    """
    best, gap, (_, errors) = way.best, way.now.gap, _vectors(chords, way.best.z)
    if chords.safe:
        away = _part(best.found.minus(way.first.found).sizes(), best.found.sizes(), chords.strict)
        lost = jnp.maximum(_LOST[chords.kinks], chords.rtol)
        best = pick(gap <= lost, best, way.first)
        gap = jnp.where(gap <= lost, gap, gap + away)
    (delta, lam), z, holds = best.found, best.z, bool(chords.unfolded.bends)
    ended = errors(jnp.where(best.higher, best.delta, delta))
    if holds and chords.strict:
        ended, z = chords.settle(errors(delta), lam)
        delta = chords.weigh(ended)
    rest = chords.unravel(z)(lam), gap, way.taken, jnp.asarray(holds)
    _, unravel = ravel_pytree(z)
    return Found(ended, chords.given | z, unravel(delta), *rest)


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


def until_together(
    ways: Way, step: Callable[[Way], Way], rtol: Number, most: int, kinks: Kinks = "none"
) -> Way:
    """Iterations of a batch until its errors are off by less than this, all together: an example
    with large errors, from which there is much to learn, counts more than others. After the first
    few they also end if two of them leave nearly all of what was left.
    """
    patience = _SOON if kinks == "others" else _PATIENCE

    def off(ways: Way) -> Array:
        sizes = jax.vmap(norm)(ways.now.sizes)
        return jnp.sum(jnp.minimum(ways.now.gap, 1) * sizes) / at_least(jnp.sum(sizes))

    def go_on(state: tuple) -> tuple:
        ways, gaps = step(state[0]), state[1]
        return ways, (off(ways), *gaps[:2])

    def unfinished(state: tuple) -> Bool[Array, ""]:
        ways, (gap, _, before) = state
        taken = jnp.max(ways.taken)
        falls = (gap <= _FALLS * before) | (taken < patience)
        return (gap > rtol) & falls & (taken < most)

    never = jnp.full((), jnp.inf, ways.now.gap.dtype)
    return jax.lax.while_loop(unfinished, go_on, (ways, (off(ways), never, never)))[0]


def _part(changes: Array, sizes: Array, strict: bool) -> Array:
    r"""How much changed of $\lambda$ and of the errors of the states: of each of them, or of both
    in one vector.
    """
    part = jnp.max(changes / at_least(sizes)) if strict else norm(changes) / at_least(norm(sizes))
    return jnp.where(jnp.all(jnp.isfinite(sizes)), part, jnp.inf)


def _left(chords: Chords, *ratios: Array) -> Array:
    """The part of a step that is left, by the slower of some ratios."""
    least = _STRICT if chords.strict else _RELAXED
    least = least if chords.kinks == "none" else _HOPPING
    return jnp.clip(ft.reduce(jnp.maximum, ratios), least, _SLOW)
