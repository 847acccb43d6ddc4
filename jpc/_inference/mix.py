r"""Iterations of a batch with a shared matrix, until its examples have converged.

Each proposes a step (see `chords.py`). As the matrix is not quite that of the example, the steps
are corrected by what the last ones did (Broyden's method). A step to a higher energy is taken
back, and a shorter one tried. Two or three iterations are enough in most networks, and a few
examples take more.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._energy import ravel
from .._types import Number
from .chords import Chords, Found
from .relax import at_least, dot, norm, pick, product_eps

# How fast changes shrink, at most and at least, as far as is believed: strictly, and in training.
_STRICT, _RATIOS = (0.2, 0.9), (0.1, 0.9)
_SHORTER = 0.25  # Of a step that led to a higher energy.
_LOST = 0.1  # Off by more than this, an example learns from its first iteration.
_PATIENCE, _FALLS = 8, 0.8  # Iterations of a batch; the part that two more leave, at most.
_FLAT = 1e-3  # Energies that differ by a smaller part count as the same.
# Parts of the tolerance, strictly and in training, to which an example goes on while it waits.
_SPARES = 1e-3, 0.1
_MEMORY = 8  # Steps that are known.
_INNER = 5, 2  # Newton's steps for a loss that is not a square, at first and then.


class _Step(NamedTuple):
    r"""A value of $\lambda$, and the correction that was proposed there."""

    lam: Array
    step: Array


class _Memory(NamedTuple):
    r"""How proposals $r$ are corrected: to $r + \sum_k a_k (b_k \cdot r)$, the last step first."""

    a: Array
    b: Array

    def __call__(self, r: Array) -> Array:
        return r + dot(dot(self.b, r), self.a)

    def learn(self, before: _Step, after: _Step) -> "_Memory":
        """From what a step did to the next proposal, which should have been nothing."""
        moved, changed = after.lam - before.lam, after.step - before.step
        a = (moved + self(changed)) / at_least(jnp.vdot(changed, changed))
        push = lambda old, new: jnp.concatenate([new[None], old[:-1]])
        return _Memory(push(self.a, a), push(self.b, -changed))


class _Try(NamedTuple):
    r"""The coordinates `v` and $\lambda$ to go on from. `sizes` are those of $\lambda$ and of the
    errors $P v$, and `changes` how much the last iteration changed of each: what `part` of them,
    and of the change before it in `ratio`. `gap` is how far they are off after it, by an estimate.
    """

    v: dict
    lam: Array
    changes: Array
    sizes: Array
    part: Array
    ratio: Array
    gap: Array


class _Point(NamedTuple):
    r"""What a step from the coordinates `base`, with states `z` and some energy, led to."""

    v: dict
    lam: Array
    base: dict
    z: dict
    energy: Array


class Way(NamedTuple):
    """Where the iterations of an example are. `best` is the last point whose base had no higher
    energy than the one before it, after a step from `last`, and `first` the one from a feedforward
    pass.
    """

    now: _Try
    first: _Point
    best: _Point
    last: _Step
    memory: _Memory
    rounding: Array
    taken: Array

    def over(self, rtol: Number) -> Array:
        """Whether it has converged."""
        return self.now.gap <= rtol


def begin(chords: Chords, v: dict) -> Way:
    """The first iteration, from a feedforward pass."""
    yhat, unravel, pull, z = chords.predict(v)
    nothing, one = jnp.zeros_like(yhat), jnp.ones((), yhat.dtype)
    here = _Step(nothing, chords.propose(unravel, yhat, nothing, _INNER[0]))
    (delta,) = pull(unravel(here.step))
    sizes = jnp.stack([norm(here.step), norm(ravel(delta))])
    energy, _ = _energy(chords, v, unravel, yhat)
    new = _move(chords, delta, here.step, v, z, energy)
    now = _Try(new.v, new.lam, sizes, sizes, one, 0 * one, jnp.inf * one)
    empty = jnp.zeros((_MEMORY, yhat.size), yhat.dtype)
    rounding = chords.rounding(unravel, yhat)
    return Way(now, new, new, here, _Memory(empty, empty), rounding, jnp.asarray(1))


def go_on(chords: Chords, way: Way) -> Way:
    """Another one, if it is not over."""
    now = way.now
    yhat, unravel, pull, z = chords.predict(now.v)
    here = _Step(now.lam, chords.propose(unravel, yhat, now.lam, _INNER[1]))
    memory = way.memory.learn(way.last, here)
    lam = now.lam + memory(here.step)
    (delta,) = pull(unravel(lam))
    step = jnp.maximum(norm(here.step) - way.rounding, 0)
    moved = norm(ravel(delta) - chords.unfolded.own(now.v))
    changes, sizes = jnp.stack([step, moved]), jnp.stack([norm(lam), norm(ravel(delta))])
    part = _part(changes, sizes, chords.strict)
    left = _left(part, now.part, now.ratio, _STRICT if chords.strict else _RATIOS)
    energy, blur = _energy(chords, now.v, unravel, yhat)
    new = _move(chords, delta, lam, now.v, z, energy)
    goes = way._replace(
        now=_Try(new.v, new.lam, changes, sizes, part, *left), best=new, last=here, memory=memory
    )
    lower = energy <= way.best.energy + blur
    new = pick(lower, goes, way._replace(now=_back(way)))._replace(taken=way.taken + 1)
    spare = _SPARES[0] if chords.strict else _SPARES[1]
    return pick(way.over(spare * chords.rtol), way, new)


def _back(way: Way) -> _Try:
    """A shorter step than the one that led up."""
    shorter = lambda base, tried: base + _SHORTER * (tried - base)
    v = jax.tree.map(shorter, way.best.base, way.now.v)
    lam, one = shorter(way.last.lam, way.now.lam), jnp.ones_like(way.now.part)
    return _Try(v, lam, way.now.sizes, way.now.sizes, one, one, one)


def _energy(chords: Chords, v: dict, unravel: Callable, yhat: Array) -> tuple[Array, Array]:
    """At some coordinates, and by how much it may be higher than another one: close to an
    equilibrium there is no difference but rounding.
    """
    unfolded = chords.unfolded
    energy = 0.5 * jnp.vdot(ravel(v), unfolded.own(v))
    energy = energy + unfolded.loss(unravel(yhat), chords.given)
    eps = product_eps(yhat.dtype)
    return energy, _FLAT * jnp.abs(energy) + 8 * eps * norm(yhat) * (1 + norm(yhat))


def finish(chords: Chords, way: Way) -> Found:
    """What was found. In training an example whose iterations have not come together teaches what
    the first of them says: what it would learn if the network were linear around its feedforward
    pass. That is never large, however far off the others are.
    """
    best, gap = way.best, way.now.gap
    if not chords.strict:
        together = gap <= _LOST
        best, gap = pick(together, best, way.first), jnp.where(together, gap, jnp.maximum(gap, 1))
    unravel = chords.unravel(best.v)
    delta = jax.tree.map(jnp.multiply, best.v, chords.unfolded.weights())
    z, held = chords.given | best.z, jnp.asarray(False)
    return Found(best.v, z, delta, unravel(best.lam), gap, way.taken, held)


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
    with large errors, from which there is much to learn, counts more than others. After the first
    few they also end if two of them leave nearly all of what was left.
    """

    def go_on(state: tuple) -> tuple:
        ways, (last, before), gaps = state
        ways = step(ways)
        whole = lambda x: jnp.sum(x, axis=0)
        part = _part(whole(ways.now.changes), whole(ways.now.sizes), strict=False)
        ratio, gap = _left(part, last, before, _RATIOS)
        return ways, (part, ratio), (gap, *gaps[:2])

    def unfinished(state: tuple) -> Bool[Array, ""]:
        ways, _, (gap, _, before) = state
        taken = jnp.max(ways.taken)
        falls = (gap <= _FALLS * before) | (taken < _PATIENCE)
        return (gap > rtol) & falls & (taken < most)

    one = jnp.ones((), ways.now.gap.dtype)
    return jax.lax.while_loop(unfinished, go_on, (ways, (one, 0 * one), (jnp.inf * one,) * 3))[0]


def _part(changes: Array, sizes: Array, strict: bool) -> Array:
    r"""How much changed of $\lambda$ and of the errors of the states: of each of them, or of both
    in one vector.
    """
    if strict:
        return jnp.max(changes / at_least(sizes))
    return norm(changes) / at_least(norm(sizes))


def _left(
    part: Array, last: Array, before: Array, ratios: tuple[float, float]
) -> tuple[Array, Array]:
    """What part of the last change this one is; and what is left after it, of a geometric series.
    The slower of two ratios counts: a step that was corrected well may be much shorter than the
    one before it, and the next one not.
    """
    ratio = part / at_least(last)
    believed = jnp.clip(jnp.maximum(ratio, before), *ratios)
    return ratio, part * believed / (1 - believed)


def _move(chords: Chords, delta: dict, lam: Array, base: dict, z: dict, energy: Array) -> _Point:
    v = jax.tree.map(jnp.divide, delta, chords.unfolded.weights())
    return _Point(v, lam, base, {name: z[name] for name in v}, energy)
