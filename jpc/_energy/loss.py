import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from .._types import Loss, Scalar


def squared_error(target: Array, prediction: Array) -> Scalar:
    r"""$\frac{1}{2} \lVert t - p \rVert^2$, summed over the units of one example."""
    return 0.5 * jnp.sum((target - prediction) ** 2)


def cross_entropy(target: Array, logits: Array) -> Scalar:
    r"""$-\sum_k t_k \log \mathrm{softmax}(p)_k$ of one example, stable for large logits."""
    return -jnp.sum(target * jax.nn.log_softmax(logits))


def bernoulli(target: Array, logits: Array) -> Scalar:
    r"""$\sum_k \log(1 + e^{p_k}) - t_k p_k$ of one example: of bits, or of numbers between 0 and
    1, whose probabilities are $\mathrm{sigmoid}(p)$.
    """
    return jnp.sum(jax.nn.softplus(logits) - target * logits)


def poisson(target: Array, log_rates: Array) -> Scalar:
    r"""$\sum_k e^{p_k} - t_k p_k$ of one example: of counts whose rates are $e^p$, up to a
    constant.
    """
    return jnp.sum(jnp.exp(log_rates) - target * log_rates)


def huber(target: Array, prediction: Array) -> Scalar:
    r"""The squared error of one example where it is below 1, and its absolute value beyond, so
    that outliers pull no more than others: $\frac{1}{2} e^2$ or $|e| - \frac{1}{2}$, summed.
    """
    return jnp.sum(optax.losses.huber_loss(prediction, target))


LOSSES: dict[str, Loss] = {
    "mse": squared_error,
    "ce": cross_entropy,
    "bernoulli": bernoulli,
    "poisson": poisson,
    "huber": huber,
}
