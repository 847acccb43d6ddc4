from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from .._given import check_callable, check_layer, check_type, show
from .._types import Clamps, Given, Loss, Nodes, Terms
from .loss import squared_error
from .network import AbstractNetworkEnergy, Network, Node, check_loss, sort
from .pc import check_precision


class GraphEnergy(AbstractNetworkEnergy):
    r"""The energy of any graph of predictions, of states that have names,

    $$F = \sum_n \frac{p_n}{2} \lVert z_n - f_n(z_{\mathrm{parents}(n)}) \rVert^2,$$

    with a loss in the place of the square where one is given. The parameters are a dictionary of
    callables $f_n$ on one example, by name. `nodes` and `clamps` are dictionaries too:
    [`jpc.pose`][] makes them. A graph may have cycles. [`jpc.Equilibrium`][] and
    [`jpc.EPCEnergy`][] need one without.

    **Arguments:**

    - `parents`: for each state that is predicted the names of those that predict it, in the order
        in which its callable takes them. All others are inputs, given or inferred.
    - `loss`: for some states the loss of what is given; by default the squared error.
    - `precision`: for some states their $p_n$, a number or an array of the state's shape; by
        default 1. An input has a prior $\frac{p_n}{2} \lVert z_n \rVert^2$ if it is named here.

    **Example:**

    ```python
    import equinox as eqx
    import jax.random as jr

    import jpc

    keys = jr.split(jr.key(0), 4)
    params = {
        "h": eqx.nn.Linear(4, 8, key=keys[0]),
        "label": eqx.nn.Linear(8, 2, key=keys[1]),
        "image": lambda h, x: h[:4] * x,
    }
    energy = jpc.GraphEnergy({"h": ["x"], "label": ["h"], "image": ["h", "x"]})
    given = {"x": jr.normal(keys[2], (5, 4)), "label": jr.normal(keys[3], (5, 2))}
    nodes, clamps = jpc.pose(energy, params, given)  # The image is not given: it is predicted.
    value = energy(params, nodes, clamps)
    ```
    """

    parents: tuple[tuple[str, tuple[str, ...]], ...] = eqx.field(static=True)
    loss: dict[str, Loss]
    precision: dict[str, Any]

    def __init__(
        self,
        parents: Given[Mapping[str, Sequence[str]]],
        *,
        loss: Given[Mapping[str, Loss] | None] = None,
        precision: Given[Mapping[str, Any] | None] = None,
    ):
        check_type("parents", parents, Mapping, "{'y': ['x']}")
        check_type("loss", loss, Mapping | None, "{'y': jpc.cross_entropy}")
        check_type("precision", precision, Mapping | None, "{'y': 0.5}")
        if not parents:
            raise ValueError("parents names no state that is predicted, such as {'y': ['x']}.")
        for name, given in parents.items():
            check_type("The name of a state", name, str, "'h'")
            listed = isinstance(given, Sequence) and not isinstance(given, str)
            if not (listed and all(isinstance(p, str) for p in given)):
                raise TypeError(
                    f"The parents of {name!r} must be a list of names, such as ['x'], got "
                    f"{show(given)}."
                )
        self.parents = tuple((name, tuple(given)) for name, given in parents.items())
        self.loss, self.precision = dict(loss or {}), dict(precision or {})
        if unknown := sorted({*self.loss, *self.precision} - {*self.names()}):
            raise ValueError(
                f"{unknown[0]!r} has a loss or a precision but is no state of the graph, which "
                f"has {', '.join(self.names())}."
            )
        for name, given in self.loss.items():
            if name not in parents:
                raise ValueError(f"loss has {name!r}, which nothing predicts: leave it out.")
            check_loss(f"The loss of {name!r}", given)
        for name, given in self.precision.items():
            if name in parents or np.any(given):  # A flat prior is none.
                check_precision(f"The precision of {name!r}", given)

    def names(self) -> list[str]:
        """Of all states, parents first where there are no cycles."""
        predicted = dict(self.parents)
        inputs = dict.fromkeys(p for _, given in self.parents for p in given)
        every = {name: () for name in inputs if name not in predicted} | predicted
        return sort(every) or list(every)

    def layerwise(self, params: PyTree, nodes: Nodes, clamps: Clamps) -> Terms:
        # Of all there is: a sum of graphs has the parameters of each.
        known, named = dict(self.parents), params if isinstance(params, Mapping) else {}
        more = [name for name, part in named.items() if name not in known and callable(part)]
        if more:
            raise ValueError(
                f"params has {more[0]!r}, which the graph does not predict: name its parents, or "
                f"leave it out. The graph predicts {', '.join(known)}."
            )
        return super().layerwise(params, nodes, clamps)

    def network(self, params: Given[dict[str, Callable]]) -> Network:
        check_type("params", params, Mapping, "{'y': eqx.nn.Linear(...)}, by name")
        parents = dict(self.parents)
        if missing := sorted(parents.keys() - params.keys()):
            raise ValueError(f"params has no callable that predicts {missing[0]!r}.")
        for name in parents:
            check_callable(f"params[{name!r}]", params[name], "eqx.nn.Linear(...)")
            check_layer(f"params[{name!r}]", params[name])

        def node(name: str) -> Node:
            if name not in parents:
                return Node(precision=self.precision.get(name, 0.0))
            loss, p = self.loss.get(name, squared_error), self.precision.get(name, 1.0)
            return Node(params[name], parents[name], loss, p)

        return {name: node(name) for name in self.names()}
