from .._types import Clamps, Layers, Nodes, Scalar
from .base import AbstractEnergy
from .loss import squared_error


class AmortisedEnergy(AbstractEnergy):
    r"""The energy of a chain whose targets are what another network inferred,

    $$F = \sum_{\ell=1}^{L} \frac{1}{2} \lVert z^*_\ell - q_\ell(a_{\ell-1}) \rVert^2,$$

    where $a_0$ is the data, $a_\ell$ the amortiser's own guesses, and $z^*$ the states that
    a generative network inferred, in the amortiser's order.

    Its `nodes` are $a_0 \dots a_{L-1}$ and a `None`, its `clamps` a `None` and
    $z^*_1 \dots z^*_L$. It is the only energy whose two lists overlap.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    guesses = [y, *jpc.feedforward_batch(back, y)]
    inferred = [y, activities[1], activities[0], x]  # From the output back.
    value = jpc.AmortisedEnergy()(back, guesses, inferred)
    ```
    """

    def terms(self, params: Layers, nodes: Nodes, clamps: Clamps) -> list[Scalar]:
        if not len(params) == len(nodes) - 1 == len(clamps) - 1:
            raise ValueError(
                f"AmortisedEnergy needs one more of nodes and of clamps than of layers, got "
                f"{len(nodes)}, {len(clamps)} and {len(params)}."
            )
        if any(z is None for z in (*nodes[:-1], *clamps[1:])):
            raise ValueError(
                "AmortisedEnergy compares the guesses of one network, all nodes but the last, "
                "with what another one inferred, all clamps but the first: one of them is None."
            )
        chain = zip(params, nodes[:-1], clamps[1:], strict=True)
        return [squared_error(target, layer(guess)) for layer, guess, target in chain]
