from collections.abc import Sequence
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from .._given import check_model, check_number, is_real, show
from .._types import Given, Layers, Loss, Number
from .loss import squared_error
from .network import AbstractNetworkEnergy, Network, Node, check_loss

Precision = Number | Float[Array, "..."]
_STIFFEST = 1e30  # More is infinite in single precision.


class PCEnergy(AbstractNetworkEnergy):
    r"""The energy of a chain of predictions,

    $$F = \sum_{\ell=1}^{L-1} \frac{p_\ell}{2} \lVert z_\ell - f_\ell(z_{\ell-1}) \rVert^2
          + p_L \, \mathrm{loss}(z_L, f_L(z_{L-1})).$$

    **Arguments:**

    - `loss`: of the last state and its prediction, where it is given. By default the squared
        error, like that of every other layer.
    - `precision`: $p_\ell$, one number for all layers or a sequence of one per layer: each a
        number, or an array of the shape of $z_\ell$, which then counts inside the sum.
    - `stiffness`: how many times more precise each hidden state is than the next one, on top of
        `precision`. With a large one, such as a million, the last hidden state gives way
        in inference, and those before it hardly move. `None` is 1.

    **Example:**

    ```python
    import jax.random as jr

    import jpc

    model = jpc.make_mlp(jr.key(0), 4, 8, 3, 2, "tanh")
    x, y = jr.normal(jr.key(1), (5, 4)), jr.normal(jr.key(2), (5, 2))
    energy = jpc.PCEnergy(precision=[1.0, 1.0, 0.1])  # The output counts a tenth.
    nodes, clamps = jpc.pose(energy, model, {0: x, 3: y})
    value = energy(model, nodes, clamps)  # Of a feedforward pass: only the output has an error.
    ```
    """

    loss: Given[Loss] = squared_error
    precision: Given[Precision | Sequence[Precision]] = 1.0
    stiffness: Given[Number | None] = None

    def __check_init__(self):
        check_loss("loss", self.loss)
        if self.stiffness is not None:
            check_number("stiffness", self.stiffness, above=0.0)
        given: Any = self.precision
        if isinstance(given, str | bytes) or not (isinstance(given, Sequence) or np.ndim(given)):
            check_precision("precision", given)
            return
        if not len(given):
            raise ValueError("precision has no entries: give one number, or one per layer.")
        for i, precision in enumerate(given):
            check_precision(f"precision[{i}]", precision)

    def precisions(self, depth: int) -> Sequence[Precision]:
        """The precision of each layer of a chain of that depth."""
        precisions = self._given(depth)
        if self.stiffness is None:
            return precisions
        stiff = [jnp.asarray(self.stiffness) ** k for k in reversed(range(depth - 1))]
        hidden = [p * jnp.minimum(s, _STIFFEST) for p, s in zip(precisions, stiff, strict=False)]
        return [*hidden, precisions[-1]]

    def _given(self, depth: int) -> list[Precision]:
        if not isinstance(self.precision, Sequence) and jnp.ndim(self.precision) == 0:
            return [self.precision] * depth
        precisions = list(cast(Any, self.precision))
        if len(precisions) != depth:
            raise ValueError(
                f"PCEnergy has {len(precisions)} precisions, but the network has {depth} "
                "layers: give one number, or one per layer."
            )
        return precisions

    def network(self, params: Given[Layers]) -> Network:
        check_model("params", params)
        return chain(params, self.precisions(len(params)), self.loss)


def check_precision(name: str, value: Any) -> None:
    """That it is a positive number, or for each unit one that is not negative."""
    hint = (
        " Without a precision a state costs nothing, and with less than none the energy has no "
        "minimum: an energy is taken away by a negative number, -1.0 * energy."
    )
    if not is_real(value) or np.ndim(value) == 0:
        check_number(name, value, above=0.0, hint=hint)
    elif not isinstance(value, Tracer):
        known = np.asarray(value)
        if not (np.isfinite(known).all() and (known >= 0).all() and known.any()):
            raise ValueError(
                f"{name} must be finite numbers, not below 0 and not all 0, got {show(known)}."
                f"{hint}"
            )


def chain(
    layers: Layers,
    precisions: Sequence[Any],
    loss: Loss = squared_error,
    learned: Sequence[bool] = (),
) -> Network:
    """A chain of states from 0 on, each predicted by the one before."""
    losses = [squared_error] * (len(layers) - 1) + [loss]
    learned = learned or [False] * len(layers)
    nodes = {
        i: Node(layer, (i - 1,), loss, p, flag)
        for i, (layer, loss, p, flag) in enumerate(
            zip(layers, losses, precisions, learned, strict=True), start=1
        )
    }
    return {0: Node(precision=0.0), **nodes}
