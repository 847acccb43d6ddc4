from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from .._clamp import Masked
from .._given import show
from .._types import Given, Loss, Scalar


def _alike(target: Any, prediction: Any) -> tuple[Array, Array]:
    """Both, if they are arrays of one shape: they must not broadcast."""
    for name, given in (("target", target), ("prediction", prediction)):
        if not eqx.is_array_like(given):
            raise TypeError(f"{name} must be an array, got {show(given)}.")
    if jnp.shape(target) != jnp.shape(prediction):
        raise ValueError(
            f"The target has shape {jnp.shape(target)}, but its prediction "
            f"{jnp.shape(prediction)}, for one example."
        )
    return jnp.asarray(target), jnp.asarray(prediction)


def squared_error(target: Given[Array], prediction: Given[Array]) -> Scalar:
    r"""$\frac{1}{2} \lVert t - p \rVert^2$, summed over the units of one example.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    cost = jpc.squared_error(jnp.array([1.0, 2.0]), jnp.array([1.0, 0.0]))  # 2.0
    ```
    """
    target, prediction = _alike(target, prediction)
    return 0.5 * jnp.sum((target - prediction) ** 2)


def cross_entropy(target: Given[Array], logits: Given[Array]) -> Scalar:
    r"""$-\sum_k t_k \log \mathrm{softmax}(p)_k$ of one example, stable for large logits.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    cost = jpc.cross_entropy(jnp.array([1.0, 0.0]), jnp.array([0.0, 0.0]))  # 0.693
    ```
    """
    target, logits = _alike(target, logits)
    if not logits.ndim:
        raise ValueError("The cross-entropy is of several classes, but there is one number.")
    return -jnp.sum(target * jax.nn.log_softmax(logits))


def bernoulli(target: Given[Array], logits: Given[Array]) -> Scalar:
    r"""$\sum_k \log(1 + e^{p_k}) - t_k p_k$ of one example: of bits, or of numbers between 0 and
    1, whose probabilities are $\mathrm{sigmoid}(p)$.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    cost = jpc.bernoulli(jnp.array([1.0, 0.0]), jnp.array([0.0, 0.0]))  # 1.386
    ```
    """
    target, logits = _alike(target, logits)
    return jnp.sum(jax.nn.softplus(logits) - target * logits)


def poisson(target: Given[Array], log_rates: Given[Array]) -> Scalar:
    r"""$\sum_k e^{p_k} - t_k p_k$ of one example: of counts whose rates are $e^p$, up to a
    constant.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    cost = jpc.poisson(jnp.array([2.0]), jnp.array([0.0]))  # 1.0
    ```
    """
    target, log_rates = _alike(target, log_rates)
    return jnp.sum(jnp.exp(log_rates) - target * log_rates)


def huber(target: Given[Array], prediction: Given[Array]) -> Scalar:
    r"""The squared error of one example where it is below 1, and its absolute value beyond, so
    that outliers pull no harder than others: $\frac{1}{2} e^2$ or $|e| - \frac{1}{2}$, summed.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    cost = jpc.huber(jnp.array([3.0, 0.5]), jnp.array([0.0, 0.0]))  # 2.625
    ```
    """
    target, prediction = _alike(target, prediction)
    return jnp.sum(optax.losses.huber_loss(prediction, target))


LOSSES: dict[str, Loss] = {
    "mse": squared_error,
    "ce": cross_entropy,
    "bernoulli": bernoulli,
    "poisson": poisson,
    "huber": huber,
}


def not_a_distribution(name: str, targets: Array, whole: Any = True) -> dict[str, Array]:
    """What can be wrong with targets of a cross-entropy, of the examples that have any: messages,
    and whether it is so.
    """
    apart = jnp.abs(jnp.sum(targets, axis=-1) - 1) > 1e-2
    wrong = f"{name} must be the probabilities of classes for the cross-entropy, such as one-hot"
    return {
        f"{wrong}, but some are negative.": jnp.any(targets < 0),
        f"{wrong}, but some do not sum to 1. If one is not known, say so with a mask.": jnp.any(
            apart & whole
        ),
    }


def unfit(name: str, losses: Sequence[Any], given: Any) -> dict[str, Array]:
    """What can be wrong with targets of some losses, given whole or in part."""
    found, masked = {}, isinstance(given, Masked)
    targets = given.fill(0) if masked else given
    if cross_entropy in losses:
        found |= _split(name, given.mask) if masked else {}
        whole = jnp.all(given.mask, axis=-1) if masked else True
        found |= not_a_distribution(name, targets, whole)
    if bernoulli in losses:
        outside = jnp.any((targets < 0) | (targets > 1))
        found[f"{name} must be numbers between 0 and 1 for the Bernoulli loss."] = outside
    if poisson in losses:
        found[f"{name} must be counts for the Poisson loss, but some are negative."] = jnp.any(
            targets < 0
        )
    return found


def _split(name: str, mask: Array) -> dict[str, Array]:
    rows = mask.reshape(len(mask), -1)
    message = (
        f"{name}: mask gives only some of the classes of an example. The cross-entropy needs all "
        "of them or none: give one boolean for each example."
    )
    return {message: jnp.any(jnp.any(rows, axis=1) & ~jnp.all(rows, axis=1))}
