from collections.abc import Sequence
from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._stack import predict
from .._types import Clamps, Layers, Loss, Nodes, Number, Scalar
from .base import AbstractEnergy
from .loss import squared_error


class PCEnergy(AbstractEnergy):
    r"""The energy of a chain of predictions,

    $$F = \sum_{\ell=1}^{L-1} \frac{p_\ell}{2} \lVert z_\ell - f_\ell(z_{\ell-1}) \rVert^2
          + p_L \, \mathrm{loss}(z_L, f_L(z_{L-1})).$$

    **Arguments:**

    - `loss`: of the last state and its prediction. By default the squared error, like that
        of every other layer.
    - `precision`: $p_\ell$, one number for all layers or a sequence of one per layer.
    """

    loss: Loss = squared_error
    precision: Number | Sequence[Number] | Float[Array, " layers"] = 1.0

    def precisions(self, depth: int) -> Sequence[Number]:
        """The precision of each layer of a chain of that depth."""
        if not isinstance(self.precision, Sequence) and jnp.ndim(self.precision) == 0:
            return [self.precision] * depth
        precisions = list(cast(Any, self.precision))
        if len(precisions) != depth:
            raise ValueError(
                f"PCEnergy has {len(precisions)} precisions, but the network has {depth} "
                "layers: give one number, or one per layer."
            )
        return precisions

    def terms(self, params: Layers, nodes: Nodes, clamps: Clamps) -> list[Scalar]:
        states = eqx.combine(nodes, clamps)
        losses = [squared_error] * (len(params) - 1) + [self.loss]
        predictions = predict(params, states[:-1], compared=True)
        chain = zip(self.precisions(len(params)), losses, states[1:], predictions, strict=True)
        return [p * loss(target, prediction) for p, loss, target, prediction in chain]
