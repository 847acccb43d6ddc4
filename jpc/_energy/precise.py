from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from .._given import check_callable, check_layer, check_model, show
from .._layer import Layer
from .._types import Given, Layers
from .network import AbstractNetworkEnergy, Network
from .pc import chain


class Precise(eqx.Module):
    r"""A layer that knows how precise its prediction is, for a [`jpc.PrecisionEnergy`][].

    **Arguments:**

    - `fn`: the layer, any callable on one example.
    - `log_precision`: $\log p$, an array: of no axes, or of the shape of what the layer predicts,
        one for each unit. It is learned.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    layers = [jpc.Precise(layer, jnp.zeros(())) for layer in model]
    precision = jnp.exp(layers[-1].log_precision)  # 1.0
    ```
    """

    fn: Given[Callable]
    log_precision: Given[Float[Array, "..."]]

    def __check_init__(self):
        check_callable("fn", self.fn, "eqx.nn.Linear(...)")
        check_layer("fn", self.fn)
        log = self.log_precision
        if not (isinstance(log, jax.Array) and jnp.issubdtype(log.dtype, jnp.floating)):
            raise TypeError(
                "log_precision must be an array of floats, such as jnp.zeros(()), got "
                f"{show(log)}."
            )
        if not isinstance(log, Tracer) and not jnp.isfinite(log).all():
            raise ValueError(f"log_precision must be finite, got {show(log)}.")

    def __call__(self, z: Array) -> Array:
        return self.fn(z)


class PrecisionEnergy(AbstractNetworkEnergy):
    r"""The energy of a chain whose layers learn their precisions,

    $$F = \sum_{\ell=1}^{L} \frac{1}{2} \sum_i \left( p_{\ell i}
          (z_{\ell i} - f_{\ell i}(z_{\ell-1}))^2 - \log p_{\ell i} \right).$$

    Layers that are [`jpc.Precise`][] have a precision that is learned. All other layers have a
    precision of 1. At the optimum $p$ is one over the mean square of the error. For an output
    this is the precision of the data. The error of a hidden layer can be inferred away, and its
    precision then grows without bound: leave it at 1, or hold it with a penalty.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    layers = [jpc.Precise(layer, jnp.zeros(())) for layer in model]
    difference = jpc.PrecisionEnergy()(layers, nodes, clamps) - energy(model, nodes, clamps)  # 0.0
    ```
    """

    def network(self, params: Given[Layers]) -> Network:
        check_model("params", params)
        logs = [_log_precision(layer) for layer in params]
        precisions = [1.0 if log is None else jnp.exp(log) for log in logs]
        return chain(params, precisions, learned=[log is not None for log in logs])


def _log_precision(layer: Any) -> Array | None:
    match layer:
        case Precise(log_precision=log) | Layer(fn=Precise(log_precision=log)):
            return log
    return None
