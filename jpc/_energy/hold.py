r"""Units that are held where they bend what follows, as rectifiers do at zero.

Let a unit with the prediction $m$ and the precision $p$ enter something whose gradient is $g_+$ to
the right of zero and $g_-$ to the left. It is at rest where its error satisfies

$$p \, e = \mathrm{clip}(-p m, g_+, g_-).$$

Between the two the unit stays at zero: it would go right from its left, and left from its right.
(Where $g_+ > g_-$ it may rest on either side.) Descent, and iterations that look at one side only,
jump from side to side for ever. Here a backward pass returns the error of the unit at rest.
"""

import functools as ft

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

_BESIDE = 1e-12  # To the right of zero, and nowhere else.


@ft.partial(jax.custom_vjp, nondiff_argnums=(0,))
def hold(slope: float, prediction: Array, error: Array, precision: Array) -> Array:
    """The state of such units. `slope` is that of what follows to the left of zero, relative to
    the one to the right. Backwards the gradient of what follows becomes $p e$ at rest.
    """
    del precision
    shut = _shut(slope, prediction, error)
    return jnp.where(shut, _BESIDE, prediction + error)


def held_error(slope: float, prediction: Array, error: Array) -> Array:
    """The error with which the units are where they are held."""
    return jnp.where(_shut(slope, prediction, error), -prediction, error)


def _shut(slope: float, prediction: Array, error: Array) -> Bool[Array, "..."]:
    """Which units are held going forwards: those with an error of minus infinity, and those that
    would show nothing any more to the left of zero, so that nothing could call them back, while
    their prediction is to the right.
    """
    lost = (slope == 0) & (prediction > 0) & (prediction + error <= 0)
    return lost | jnp.isneginf(error)


def _forwards(slope, prediction, error, precision):
    z = hold(slope, prediction, error, precision)
    return z, (z, precision * prediction)


def _backwards(slope, kept, gradient):
    z, drift = kept
    right = jnp.where(z > 0, gradient, gradient / slope if slope else 0)
    left = jnp.where(z > 0, slope * gradient, gradient)
    rest = jnp.where(right <= left, jnp.clip(-drift, right, left), gradient)
    return rest, rest, jnp.zeros_like(rest)


hold.defvjp(_forwards, _backwards)
