import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._types import Scalar


def squared_error(target: Array, prediction: Array) -> Scalar:
    r"""$\frac{1}{2} \lVert t - p \rVert^2$, summed over the units of one example."""
    return 0.5 * jnp.sum((target - prediction) ** 2)


def cross_entropy(target: Array, logits: Array) -> Scalar:
    r"""$-\sum_k t_k \log \mathrm{softmax}(p)_k$ of one example, stable for large logits."""
    return -jnp.sum(target * jax.nn.log_softmax(logits))
