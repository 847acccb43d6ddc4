import dataclasses
import functools as ft
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._checks import checked_jit, raise_if_not_finite
from .._metrics import tree_norm
from .._types import Clamps, Nodes, Number
from .base import (
    RESULTS,
    AbstractInference,
    Inferred,
    check_positive,
    conclude,
    examples,
    gradient_norm,
)
from .chain import ErrorChain, Found, ravel

_DEEP = 16  # From here on chords are a loop, for a short first call; a loop of few layers is slow.


class Equilibrium(AbstractInference):
    r"""Solves for the equilibrium of inference, $\nabla_z F = 0$, of a chain: a
    [`jpc.PCEnergy`][], also with penalties or in the coordinates of its errors.

    First come a few iterations of the whole batch with one matrix $S$, the mean of a handful
    of examples. Then the examples that are not there yet, if any, are brought down by damped
    Gauss-Newton steps of their own, and if that does not do because units sit at the kinks of
    rectifiers, by Newton steps that hold those units. No example ends at a higher energy than it
    started from.
    Learning uses the errors that were solved for. It cannot be differentiated, but with
    `max_steps=0`, where gradients are those of the chords, not of the implicit function theorem.

    **Arguments:**

    - `rtol`: an example has converged when its errors are off by less than this, relatively.
    - `chords`: how many iterations with a shared matrix; each is one forward and one backward
        pass without gradients of the weights.
    - `shared`: how many examples of the batch to take the matrix from; `None`: each example
        has its own.
    - `max_steps`: how many steps of either kind an example may take after that. With 0 there is no
        branch in the compiled program; an example that has not converged says so in `result`,
        and what there is to learn from it is what the chords left.
    - `dense`: the largest size of the output for which matrices are made. Beyond it the damped
        steps are solved for by conjugate gradients, and there are no chords.
    - `throw`: whether activities that are not finite raise an error.
    - `inverse`: $S^{-1}$, if it is known, as in what [`jpc.Equilibrium.prepare`][] returns.
    """

    rtol: Number = 1e-2
    chords: int = eqx.field(static=True, default=5)
    shared: int | None = eqx.field(static=True, default=4)
    max_steps: int = eqx.field(static=True, default=100)
    dense: int = eqx.field(static=True, default=64)
    throw: bool = eqx.field(static=True, default=True)
    inverse: Array | None = None

    def __check_init__(self):
        if self.chords < 0 or self.max_steps < 0 or self.chords + self.max_steps == 0:
            raise ValueError("Equilibrium needs at least one chord or damped step.")
        check_positive("rtol", self.rtol)
        if self.shared is not None and self.shared < 1:
            raise ValueError(f"shared must be at least one example, or None: got {self.shared}.")

    @checked_jit
    def __call__(self, energy, params, nodes, clamps, *, record=None, key=None):
        if record is not None:
            raise ValueError("Equilibrium has no dynamics to record: use GradientFlow.")
        chain = ErrorChain.of(energy, params, nodes, clamps)
        before = examples(energy, params, nodes, clamps)
        if self.chords > 0 and chain.definite and chain.outputs <= self.dense:
            found = self._chords(chain, nodes, clamps)
        else:
            found = jax.vmap(chain.linearise)(jax.vmap(chain.coordinates)(nodes, clamps), clamps)

        def end(found):
            ended = jax.vmap(chain.nodes)(found.v, clamps)
            return found, ended, examples(energy, params, ended, clamps)

        found, ended, after = end(found)
        blur = jax.vmap(chain.blur)(found.v, clamps)
        if self.max_steps > 0:
            # These are rare, so their program should be short rather than fast.
            compact = ErrorChain.of(energy, params, nodes, clamps, loops=True)
            okay = after <= before + blur
            done = okay & (found.gap <= self.rtol)
            damp = lambda *args: self._damp_if_needed(chain, compact, *args)
            rest = (nodes, clamps, okay, done)
            damped = lambda: end(jax.vmap(damp)(_undifferentiable(found), *rest))
            undamped = (found, ended, after)
            found, ended, after = jax.lax.cond(jnp.all(done), lambda: undamped, damped)
        result = jax.vmap(_result)((after <= before + blur) & (found.gap <= self.rtol))
        okay = after <= before
        ended, after = _where(okay, (ended, after), (nodes, before))
        ended, result = conclude(ended, result, before, after, throw=self.throw)
        stats = {"steps": found.steps, "evaluations": found.steps + 1}
        # Where units are held at kinks, it is the gradient of the others.
        held = jax.vmap(lambda v, gap: gap * jnp.linalg.norm(chain.own(v)))(found.v, found.gap)
        held = held / jax.vmap(tree_norm)(ended)
        norms = gradient_norm(energy, params, ended, clamps)
        stats["gradient_norm"] = jnp.where(okay & found.kinks, held, norms)
        lesson = None if chain.local is None else (chain.local, jax.vmap(chain.lesson)(found))
        if self.throw and lesson is not None:
            ended = raise_if_not_finite({"What there is to learn": lesson[1]}, ended)
        return Inferred(ended, result, stats, lesson=lesson)

    def prepare(self, energy, params, nodes, clamps) -> "Equilibrium":
        """The same method with the matrix of this batch, to be used for others. The matrix
        changes slowly while a network learns, and making it is a good part of the cost on a
        device that waits for one small kernel after another: one for ten batches will do.
        """
        chain = ErrorChain.of(energy, params, nodes, clamps)
        start = jax.vmap(chain.feedforward)(nodes)
        return dataclasses.replace(self, inverse=self._inverse(chain, start, clamps))

    def _inverse(self, chain: ErrorChain, start: Nodes, clamps: Clamps) -> Array:
        """$S^{-1}$ of each example, or of the mean of the first few."""
        some = jax.tree.map(lambda x: x[: self.shared], (start, clamps))
        matrix = jax.vmap(chain.matrix)(*some)
        return jnp.linalg.inv(matrix if self.shared is None else jnp.mean(matrix, axis=0))

    def _chords(self, chain: ErrorChain, nodes: Nodes, clamps: Clamps) -> Found:
        """Iterations from a feedforward pass, with matrices that are made there."""
        start = jax.vmap(chain.feedforward)(nodes)
        inverse = self._inverse(chain, start, clamps) if self.inverse is None else self.inverse
        chord = lambda v, clamps, inverse: self._chord(chain, v, clamps, inverse)
        axes = (0, 0, 0 if inverse.ndim == 3 else None)
        return jax.vmap(chord, in_axes=axes)(start, clamps, inverse)

    def _chord(self, chain: ErrorChain, v: Nodes, clamps: Clamps, inverse: Array) -> Found:
        def chord(v: Nodes, lam: Array, previous: Array) -> tuple[Found, Array]:
            prediction, pull, states = jax.vjp(chain.predict(clamps), v, has_aux=True)
            residual = chain.output_error(clamps, prediction) - lam
            lam = lam + (inverse @ residual.ravel()).reshape(lam.shape)
            (delta,) = pull(lam)
            last, v = v, jax.tree.map(jnp.divide, delta, chain.weights)
            change = _relative(last, v)
            return Found(v, states, delta, lam, _remaining(previous, change), *settled), change

        settled = (jnp.asarray(self.chords), jnp.asarray(False))
        again = lambda _, state: chord(state[0].v, state[0].lam, state[1])
        state = chord(v, jnp.zeros_like(clamps[-1]), jnp.zeros((), clamps[-1].dtype))
        if len(chain.blocks) > _DEEP:
            found, _ = jax.lax.fori_loop(1, self.chords, again, state)
        else:
            found, _ = ft.reduce(lambda state, i: again(i, state), range(1, self.chords), state)
        # The iterations may crawl, where this example's matrix is nothing like that of the
        # others, or end at a kink.
        confirmed = chain.gap(found.v, clamps, found.lam) <= jnp.sqrt(self.rtol)
        return found._replace(gap=jnp.where(confirmed, found.gap, jnp.inf))

    def _damp_if_needed(self, chain, compact, found, nodes, clamps, okay, done) -> Found:
        """Damped steps from what was found, if that is okay, or else from the start; and if they
        do not get there, it may be because of kinks.
        """
        found_v = compact.pack(chain.unpack(found.v))
        start = _where(okay, found_v, compact.coordinates(nodes, clamps))
        v, energy, lam, gap, steps = self._damp(compact, start, clamps, done)
        rtol = jnp.where(done | (gap <= self.rtol), jnp.inf, self.rtol)
        *settled, lower, more = compact.settle(v, clamps, rtol, self.max_steps)
        better = jnp.isfinite(rtol) & (lower <= energy + compact.blur(v, clamps))
        v, gap = _where(better, tuple(settled), (v, gap))
        new = (chain.pack(compact.unpack(v)), gap, steps + jnp.where(better, more, 0))
        v, gap, steps = _where(done, (found.v, found.gap, found.steps), new)
        lam = None if lam is None else _where(done, found.lam, lam)
        return chain.linearise(v, clamps, lam, better)._replace(gap=gap, steps=steps)

    def _damp(self, chain: ErrorChain, v: Nodes, clamps: Clamps, done: Array):
        """Levenberg-Marquardt: the damping falls with each step that lowers the energy, and
        grows, with the step not taken, otherwise.
        """
        step = chain.dense_step if chain.outputs <= self.dense else chain.iterative_step
        eps = jnp.finfo(clamps[-1].dtype).eps
        floor = 0.0 if chain.definite else jnp.sqrt(eps)

        def body(state):
            v, energy, damping, _, steps, progress = state
            tries, gap = step(v, clamps, damping)
            new, lower = _lowest([(v, chain.energy(v, clamps)) for v in tries])
            okay = lower <= energy + blur
            easier = jnp.where(damping < 1e-3, floor, damping / 4)
            damping = jnp.where(okay, easier, jnp.maximum(8 * damping, 0.1))
            converged = gap <= self.rtol
            v, energy = _where(okay & ~converged, (new, lower), (v, energy))
            return v, energy, damping, gap, steps + 1, progress.update(energy, gap)

        def unfinished(state):
            *_, gap, steps, progress = state
            hopeful = (steps < self.max_steps) & (progress.stalled < 8)
            return ~done & (gap > self.rtol) & hopeful

        damping = jnp.asarray(0.0 if chain.definite else 1e-2, clamps[-1].dtype)
        gap = jnp.asarray(jnp.inf, clamps[-1].dtype)
        energy, blur = chain.energy(v, clamps), chain.blur(v, clamps)
        state = (v, energy, damping, gap, jnp.asarray(0), _Progress(energy, gap, jnp.asarray(0)))
        v, energy, _, gap, steps, _ = jax.lax.while_loop(unfinished, body, state)
        solvable = chain.definite and chain.outputs <= self.dense
        lam = chain.solve(v, clamps) if solvable else None
        return v, energy, lam, gap, steps + (self.chords if solvable else 0)


@jax.custom_jvp
def _undifferentiable(found: Found) -> Found:
    return found


@_undifferentiable.defjvp
def _(*_):
    raise TypeError(
        "Equilibrium cannot be differentiated: its damped steps have no derivative. Use "
        "Equilibrium(max_steps=0), which is its chords alone, or GradientFlow or Descent."
    )


class _Progress(NamedTuple):
    """For how many steps neither the energy nor the gap has come down by much."""

    energy: Array
    gap: Array
    stalled: Array

    def update(self, energy: Array, gap: Array) -> "_Progress":
        lower = energy < self.energy - 1e-3 * jnp.abs(self.energy)
        better = lower | (gap < 0.5 * self.gap)
        new = _Progress(energy, gap, jnp.asarray(0))
        return _where(better, new, self._replace(stalled=self.stalled + 1))


def _lowest(tries: list[tuple[Nodes, Array]]) -> tuple[Nodes, Array]:
    """The one with the lowest energy; what is not a number is not low."""
    best, *others = tries
    for other in others:
        best = _where(other[1] < best[1], other, best)
    return best


def _remaining(previous: Array, last: Array) -> Array:
    """What is left of a sequence that converges linearly, by its last two changes."""
    return last * jnp.where(previous > last, jnp.minimum(1.0, last / (previous - last)), 1.0)


def _relative(old: Any, new: Any) -> Array:
    """The distance of two trees, relative to the second."""
    old, new = ravel(old), ravel(new)
    change = jnp.linalg.norm(new - old)
    return jnp.where(change == 0, 0.0, change / jnp.linalg.norm(new))


def _result(converged: Array) -> RESULTS:
    return RESULTS.where(converged, RESULTS.successful, RESULTS.stopped_early)


def _where(mask: Array, one: PyTree, other: PyTree) -> PyTree:
    """One tree or the other, for each example."""
    pick = lambda a, b: jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)
    return jax.tree.map(pick, one, other)
