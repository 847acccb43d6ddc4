from typing import Any

import jax
from jax.core import Tracer
from jaxtyping import Array, Bool

from .._clamp import states
from .._given import check_model, check_number, show
from .._stack import predict
from .._types import Clamps, Given, Layers, Nodes, Number, Scalar
from .base import AbstractEnergy
from .loss import squared_error


class BPCEnergy(AbstractEnergy):
    r"""The energy of bidirectional predictive coding: two chains of predictions, one in each
    direction, that share their states,

    $$F = \sum_{\ell=1}^{L} \frac{a_f}{2} \lVert z_\ell - f_\ell(z_{\ell-1}) \rVert^2
        + \frac{a_b}{2} \lVert z_{\ell-1} - g_\ell(z_\ell) \rVert^2.$$

    Its parameters are the pair `(top_down, bottom_up)` of the lists $f_1 \dots f_L$ and
    $g_1 \dots g_L$, callables on one example. Its terms are a pair of lists too, both from the
    layer 1 to the layer L.

    A state has an error of its own prediction, and it makes predictions whose errors reach it
    through their derivatives. With predictive dendrites only a part $s$ of the latter reaches it,

    $$\dot z_\ell = -a_f e_\ell - a_b d_\ell
        + s \left( a_f \frac{\partial f_{\ell+1}}{\partial z_\ell}^T e_{\ell+1}
        + a_b \frac{\partial g_\ell}{\partial z_\ell}^T d_{\ell-1} \right),$$

    where $e_\ell = z_\ell - f_\ell(z_{\ell-1})$ and $d_\ell = z_\ell - g_{\ell+1}(z_{\ell+1})$.
    This is what `jax.grad` of this energy gives. For $s < 1$ it is not the gradient of $F$, which
    may grow. Learning is the same for every $s$.

    **Arguments:**

    - `forward_weight`, `backward_weight`: $a_f$ and $a_b$.
    - `source_gradient`: $s$, from 0 to 1.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    dendrites = jpc.BPCEnergy(forward_weight=1e-3, source_gradient=0.1)
    optims, models = (optim, optim), (model, back[::-1])
    states = [optim.init(eqx.filter(m, eqx.is_array)) for m in models]
    result = jpc.make_bpc_step(*models, optims, states, y, x, energy=dendrites)
    ```
    """

    forward_weight: Given[Number] = 1.0
    backward_weight: Given[Number] = 1.0
    source_gradient: Given[Number] = 1.0

    def __check_init__(self):
        check_number("forward_weight", self.forward_weight, least=0.0)
        check_number("backward_weight", self.backward_weight, least=0.0)
        check_number("source_gradient", self.source_gradient, least=0.0, most=1.0)
        weights = (self.forward_weight, self.backward_weight)
        if not (any(isinstance(w, Tracer) for w in weights) or any(weights)):
            raise ValueError("forward_weight and backward_weight are both 0: nothing would learn.")

    def terms(
        self, params: Given[tuple[Layers, Layers]], nodes: Nodes, clamps: Clamps
    ) -> tuple[list[Scalar], list[Scalar]]:
        z: list[Array] = states(nodes, clamps)
        top_down, bottom_up = _check(params, z)
        source = [self._source(state) for state in z]
        forward = _errors("top_down", top_down, source[:-1], z[1:])
        backward = _errors("bottom_up", bottom_up, source[1:], z[:-1])
        return (
            [self.forward_weight * error for error in forward],
            [self.backward_weight * error for error in backward],
        )

    def descends(self) -> bool | Bool[Array, ""]:
        return self.source_gradient == 1

    def _source(self, z: Array) -> Array:
        """The same state, with a part of its gradient."""
        fixed = jax.lax.stop_gradient(z)
        return fixed + self.source_gradient * (z - fixed)


def _errors(
    model: str, layers: Layers, sources: list[Array], targets: list[Array]
) -> list[Scalar]:
    names = [f"Layer {i} of {model}" for i in range(1, 1 + len(layers))]
    predictions = predict(layers, [(z,) for z in sources], names=names, compared=True)
    return [squared_error(z, p) for z, p in zip(targets, predictions, strict=True)]


def _check(params: Any, z: list) -> tuple[Any, Any]:
    """Two models of equally many layers, between states that are all there."""
    if not (isinstance(params, tuple | list) and len(params) == 2):
        raise TypeError(f"params must be a pair (top_down, bottom_up), got {show(params)}.")
    top_down, bottom_up = params
    check_model("top_down", top_down)
    check_model("bottom_up", bottom_up)
    if not len(top_down) == len(bottom_up) == len(z) - 1:
        raise ValueError(
            f"The top-down model has {len(top_down)} layers, the bottom-up model "
            f"{len(bottom_up)}, and there are {len(z)} states: two models of L layers need L + 1 "
            "states, z_0 ... z_L."
        )
    if missing := [i for i, state in enumerate(z) if state is None]:
        raise ValueError(f"z_{missing[0]} is in neither nodes nor clamps.")
    return top_down, bottom_up
