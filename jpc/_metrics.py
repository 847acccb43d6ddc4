from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from ._checks import all_finite, not_finite
from ._energy import cross_entropy, not_a_distribution, squared_error, total
from ._given import as_batch, show
from ._types import Given, Scalar


def mse_loss(preds: Given[ArrayLike], labels: Given[ArrayLike]) -> Scalar:
    """Half of the squared error, summed over units and averaged over the batch.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    loss = jpc.mse_loss(jnp.zeros((3, 2)), jnp.ones((3, 2)))  # 1.0
    ```
    """
    return jnp.mean(jax.vmap(squared_error)(*_same_shape(labels=labels, preds=preds)))


def cross_entropy_loss(logits: Given[ArrayLike], labels: Given[ArrayLike]) -> Scalar:
    """The cross-entropy of one-hot labels, averaged over the batch.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    loss = jpc.cross_entropy_loss(jnp.zeros((3, 2)), jnp.eye(2)[jnp.array([0, 1, 1])])  # 0.693
    ```
    """
    labels, logits = _classes(labels=labels, logits=logits)
    _raise_if(not_a_distribution("labels", labels))
    return jnp.mean(jax.vmap(cross_entropy)(labels, logits))


def compute_accuracy(truths: Given[ArrayLike], preds: Given[ArrayLike]) -> Scalar:
    """How many predictions have their largest entry where the truth has it, in percent. If any
    of them is not finite this is NaN when traced, and a run-time error otherwise.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    truths, guesses = jnp.eye(4), jnp.eye(4)[jnp.array([0, 1, 2, 2])]
    accuracy = jpc.compute_accuracy(truths, guesses)  # 75.0
    ```
    """
    truths, preds = _classes(truths=truths, preds=preds)
    named = {"truths": truths, "preds": preds}
    _raise_if({not_finite(name): ~all_finite(x) for name, x in named.items()})
    _raise_if(
        {
            "truths has an example without a class: all of its entries are the same, as "
            "jax.nn.one_hot makes them of labels out of range.": jnp.any(
                jnp.all(truths == truths[..., :1], axis=-1)
            )
        }
    )
    return accuracy(truths, preds)


def accuracy(truths: Array, preds: Array) -> Scalar:
    """The same of anything, also of one example."""
    hits = jnp.argmax(truths, axis=-1) == jnp.argmax(preds, axis=-1)
    percent = 100.0 * jnp.mean(hits, dtype=jnp.result_type(float))
    return jnp.where(all_finite((truths, preds)), percent, jnp.nan)


def _raise_if(problems: dict[str, Bool[Array, ""]]) -> None:
    """Raises the first message whose value is known to be true."""
    for message, bad in problems.items():
        if not isinstance(bad, Tracer) and bad:
            raise RuntimeError(message)


def _classes(**named: Any) -> tuple[Array, Array]:
    truths, preds = _same_shape(**named)
    if truths.ndim < 2 or truths.shape[-1] < 2:
        raise ValueError(
            f"{' and '.join(named)} need an axis of examples and, at the end, one of at least two "
            f"classes, got shape {truths.shape}. Integer labels need jax.nn.one_hot(labels, "
            "num_classes)."
        )
    return truths, preds


def _same_shape(**named: Any) -> tuple[Array, Array]:
    return same_shape(*(as_batch(name, value) for name, value in named.items()))


def same_shape(labels: Array, preds: Array) -> tuple[Array, Array]:
    if labels.shape != preds.shape:
        raise ValueError(
            f"Labels of shape {labels.shape} do not fit predictions of shape {preds.shape}. "
            "Integer labels need jax.nn.one_hot(labels, num_classes)."
        )
    return labels, preds


def _layers_of(name: str, value: Any) -> Sequence:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"{name} must be a list, of something for each layer: got {show(value)}.")
    if not value:
        raise ValueError(f"{name} has no layers.")
    return value


def compute_activity_norms(activities: Given[Sequence[Array]]) -> Float[Array, " layers"]:
    """The mean over the batch of the Euclidean norm of each layer's activities.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    norms = jpc.compute_activity_norms(activities)  # One for each layer.
    ```
    """
    named = enumerate(_layers_of("activities", activities))
    states = [as_batch(f"activities[{i}]", z) for i, z in named]
    return jnp.stack([jnp.mean(jax.vmap(tree_norm)(z)) for z in states])


def compute_param_norms(params: Given[tuple[PyTree, PyTree]]) -> tuple[Array, Array | None]:
    """The Euclidean norm of all parameters of each layer, of a model and of its skip
    connections (`None` if there are none). Works on gradients too.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    norms, _ = jpc.compute_param_norms(params)  # One for each layer.
    ```
    """
    if not (isinstance(params, tuple) and len(params) == 2):
        raise TypeError("params must be (model, None) or (model, skip_model), or grads like it.")
    model, skip_model = params
    norms = lambda name, layers: jnp.stack([tree_norm(x) for x in _layers_of(name, layers)])
    return norms("model", model), None if skip_model is None else norms("skip_model", skip_model)


def tree_norm(tree: PyTree) -> Scalar:
    """The Euclidean norm of all floating-point numbers in a tree."""
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return jnp.sqrt(total([jnp.asarray(0.0), *(jnp.sum(x**2) for x in arrays)]))
