r"""Iterations with a shared matrix where outputs are large, such as images.

There $A = J P^{-1} J^T$ (see `chords.py`) has as many columns as there are pixels, and nobody can
afford them. But few of its eigenvalues are large. So it is sketched: products with a few random
vectors $\Omega$ give [1]

$$A \approx F F^T + \sigma, \qquad
  F F^T = A \Omega (\Omega^T A \Omega)^{-1} \Omega^T A,$$

with a few times the mean of the eigenvalues that are missing for $\sigma$. What this leaves out is
made up for by mixing the last steps (Anderson's method), which takes out what they have in common.
The steps go on until an example has converged.

[1] Frangella, Tropp, Udell: Randomized Nyström preconditioning (2023).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

from .._energy import Unfolded, ravel
from .._solve import solve, whiten
from .chords import Chords, Found, multiply
from .relax import at_least, dot, norm, pick

_RATIOS = 0.5, 0.9  # How fast steps shrink, at most and at least, as far as is believed.
_FAR = 10.0  # A correction so many times what there is leads nowhere.
_RIDGE = 1e-6
_ABOVE = 4  # Of the eigenvalues that are missing the largest ones matter most.


class Sketch(NamedTuple):
    r"""$A$, by $F$ and $\sigma$."""

    F: Array
    rest: Array

    @staticmethod
    def of(unfolded: Unfolded, v: dict, given: dict, rank: int) -> "Sketch":
        """Of one example."""
        yhat = ravel(unfolded.predict(v, given)[0])
        probes = jr.normal(jr.key(0), (rank, yhat.size), yhat.dtype)
        rows = jax.vmap(multiply(unfolded, v, given))(probes)
        inner = dot(probes, rows.T)
        trace = jnp.trace(inner) / rank  # Of A, by an estimate.
        # Where the rank of A is less than that, what is left is rounding.
        least = 100 * float(jnp.finfo(yhat.dtype).eps) * at_least(trace)
        inner = 0.5 * (inner + inner.T) + least * jnp.eye(rank, dtype=yhat.dtype)
        F = whiten(inner, rows).T
        missing = jnp.maximum(trace - jnp.sum(F**2), 0) / max(yhat.size - rank, 1)
        return Sketch(F, _ABOVE * missing)

    def __call__(self, t: Array) -> Array:
        """$A t$."""
        return dot(self.F, dot(self.F.T, t)) + self.rest * t

    def solve(self, loss: Callable[[Array], Array], y: Array, error: Array) -> Array:
        r"""$(I + H A)^{-1}$ times an error, with the curvature $H$ of the loss at $y$."""
        scale, HF, inner = self._woodbury(loss, y)
        return error / scale - dot(HF, solve(inner, dot(self.F.T, error / scale)))

    def invert(self, loss: Callable[[Array], Array], y: Array) -> "Folded":
        """The inverse, where it is the same for all examples."""
        scale, HF, inner = self._woodbury(loss, y)
        return Folded(scale, HF, solve(inner, self.F.T / scale[None]))

    def _woodbury(self, loss: Callable, y: Array) -> tuple[Array, Array, Array]:
        r"""$\sigma$ sees sums of the rows of $H$: all of it, if the loss is a sum over units."""
        curvature = lambda t: jax.jvp(jax.grad(loss), (y,), (t,))[1]
        scale = 1 + self.rest * jnp.maximum(curvature(jnp.ones_like(y)), 0)
        HF = jax.vmap(curvature, in_axes=1, out_axes=1)(self.F) / scale[:, None]
        return scale, HF, jnp.eye(HF.shape[1], dtype=y.dtype) + dot(self.F.T, HF)


class Folded(NamedTuple):
    """A diagonal matrix and one of low rank, to be subtracted from its inverse."""

    scale: Array
    left: Array
    right: Array

    def solve(self, loss: Callable, y: Array, error: Array) -> Array:
        """$S^{-1}$ times an error."""
        del loss, y
        return error / self.scale - dot(self.left, dot(self.right, error))


class _Way(NamedTuple):
    r"""Where the iterations are: the coordinates `v`, $\lambda$, and the free states `z` at which
    one follows from the other. `part` is how much of it the last correction was.
    """

    v: dict
    z: dict
    lam: Array
    part: Array


class _Step(NamedTuple):
    r"""A value of $\lambda$, and the correction that was proposed there."""

    lam: Array
    step: Array


def mix(chords: Chords, v: dict, count: int) -> Found:
    """Up to so many iterations of one example, until it has converged. If they do not come
    together, the one with the smallest correction counts.
    """
    unfolded, given, rtol = chords.unfolded, chords.given, chords.rtol
    weights, free = unfolded.weights(), lambda z: {name: z[name] for name in v}

    def go_on(state):
        now, best, steps, _, taken = state
        yhat, unravel, pull, z = chords.predict(now.v)
        here = _Step(now.lam, chords.propose(unravel, yhat, now.lam))
        lam = _anderson((here, *steps), taken)
        (delta,) = pull(unravel(lam))
        step = jnp.maximum(norm(here.step) - rounding, 0) / at_least(norm(lam))
        moved = norm(ravel(delta) - unfolded.own(now.v)) / at_least(norm(ravel(delta)))
        part = jnp.maximum(step, moved)
        # Steps that shrink by a constant factor leave what remains of a geometric series.
        ratio = jnp.clip(part / now.part, *_RATIOS)
        new = _Way(jax.tree.map(jnp.divide, delta, weights), free(z), lam, part)
        best = pick(part <= best.part, new, best)
        return new, best, (here, steps[0]), part * ratio / (1 - ratio), taken + 1

    def unfinished(state):
        now, _, _, gap, taken = state
        return (gap > rtol) & (now.part < _FAR) & (taken < count)

    yhat, unravel, _, z = chords.predict(v)
    rounding = chords.negligible(unravel, yhat, jnp.zeros_like(yhat))
    nothing, never = jnp.zeros_like(yhat), jnp.asarray(jnp.inf, yhat.dtype)
    start = _Way(v, free(z), nothing, jnp.ones_like(never))
    steps = (_Step(nothing, nothing),) * 2
    state = (start, start._replace(part=never), steps, never, jnp.asarray(0))
    _, best, _, gap, taken = jax.lax.while_loop(unfinished, go_on, state)
    delta = jax.tree.map(jnp.multiply, best.v, weights)
    steady, held = gap <= rtol, jnp.asarray(False)
    gap = jnp.where(steady, gap, jnp.maximum(gap, best.part))
    return Found(best.v, given | best.z, delta, unravel(best.lam), gap, taken, steady, held)


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
