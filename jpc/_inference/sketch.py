r"""Iterations with a shared matrix where outputs are large, such as images.

There $A = J P^{-1} J^T$ (see `chords.py`) has as many columns as there are pixels, and nobody can
afford them. But few of its eigenvalues are large. So it is sketched: products with a few random
vectors $\Omega$ give [1]

$$A \approx F F^T + \sigma, \qquad
  F F^T = A \Omega (\Omega^T A \Omega)^{-1} \Omega^T A,$$

with a few times the mean of the eigenvalues that are missing for $\sigma$. What this leaves out is
made up for by mixing steps (`mix.py`).

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
from .chords import multiply
from .relax import at_least, dot

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
