from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from ._energy import cross_entropy, squared_error, total
from ._types import Given, Scalar


def mse_loss(preds: ArrayLike, labels: ArrayLike) -> Scalar:
    """Half of the squared error, summed over units and averaged over the batch."""
    return jnp.mean(jax.vmap(squared_error)(*_same_shape(labels, preds)))


def cross_entropy_loss(logits: ArrayLike, labels: ArrayLike) -> Scalar:
    """The cross-entropy of one-hot labels, averaged over the batch."""
    return jnp.mean(jax.vmap(cross_entropy)(*_same_shape(labels, logits)))


def compute_accuracy(truths: ArrayLike, preds: ArrayLike) -> Scalar:
    """How many predictions have their largest entry where the truth has, in percent."""
    truths, preds = _same_shape(truths, preds)
    hits = jnp.argmax(truths, axis=-1) == jnp.argmax(preds, axis=-1)
    return 100.0 * jnp.mean(hits, dtype=jnp.result_type(float))


def _same_shape(labels: ArrayLike, preds: ArrayLike) -> tuple[Array, Array]:
    labels, preds = jnp.asarray(labels), jnp.asarray(preds)
    if labels.shape != preds.shape:
        raise ValueError(
            f"Labels of shape {labels.shape} do not fit predictions of shape {preds.shape}. "
            "Integer labels need jax.nn.one_hot(labels, num_classes)."
        )
    return labels, preds


def compute_activity_norms(activities: Sequence[Array]) -> Float[Array, " layers"]:
    """The mean over the batch of the Euclidean norm of each layer's activities."""
    return jnp.stack([jnp.mean(jax.vmap(tree_norm)(z)) for z in activities])


def compute_param_norms(params: Given[tuple[PyTree, PyTree]]) -> tuple[Array, Array | None]:
    """The Euclidean norm of all parameters of each layer, of a model and of its skip
    connections (`None` if there are none). Works on gradients too.
    """
    if not (isinstance(params, tuple) and len(params) == 2):
        raise TypeError("params must be (model, None) or (model, skip_model), or grads like it.")
    model, skip_model = params
    norms = lambda layers: jnp.stack([tree_norm(layer) for layer in layers])
    return norms(model), None if skip_model is None else norms(skip_model)


def tree_norm(tree: PyTree) -> Scalar:
    """The Euclidean norm of all floating-point numbers in a tree."""
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return jnp.sqrt(total([jnp.asarray(0.0), *(jnp.sum(x**2) for x in arrays)]))
