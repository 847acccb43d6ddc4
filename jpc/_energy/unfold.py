r"""Networks in the coordinates of their errors, where the equilibrium of inference is small.

Write $z_n = f_n(\mathrm{parents}) + e_n$ for every state that is inferred, and let $v$ be all of
these errors (of a state that nothing predicts, the state itself). Then the energy is a sum of
squares and a loss of the predictions $\hat y$ of what is given,

$$F(v) = \tfrac{1}{2} v^T P v + \mathrm{loss}(\hat y(v)),$$

with a diagonal $P$, the precisions, whatever the network is and wherever it is clamped.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from .._clamp import Masked, entry, inferred, states
from .._types import Clamps, Name, Nodes, Scalar
from .base import total
from .hold import held_error, hold
from .loss import squared_error
from .network import (
    Network,
    check_order,
    check_shape,
    check_states,
    costs,
    naming,
    predictions,
    predictor,
)


class Unfolded(eqx.Module):
    """A network in the coordinates of its errors; all of its functions are of one example.

    **Attributes:**

    - `network`: its nodes, by name. `free` and `given` below are dictionaries by name too.
    - `names`: parents before their children; a tree's dictionary does not keep its order.
    - `free`, `seen`: the names of the states that are inferred, at least in part, and of those
        that are both predicted and given, at least in part.
    - `bends`: the states whose units are held at zero, where they bend what follows, and the slope
        of that to the left of zero, relative to the one to the right (see `hold.py`).
    """

    network: Network
    names: tuple[Name, ...] = eqx.field(static=True)
    free: tuple[Name, ...] = eqx.field(static=True)
    seen: tuple[Name, ...] = eqx.field(static=True)
    bends: tuple[tuple[Name, float], ...] = eqx.field(static=True, default=())

    @staticmethod
    def of(network: Network, nodes: Nodes, clamps: Clamps) -> tuple["Unfolded", dict, dict]:
        """The network of a problem, and what is free and what is given in it, by name."""
        check_order(network)
        check_states(network, nodes, clamps)
        given = {name: entry(clamps, name) for name in network}
        free = {name: entry(nodes, name) for name in network}
        seen = [n for n, node in network.items() if given[n] is not None and node.fn is not None]
        free = {name: z for name, z in free.items() if z is not None}
        return Unfolded(network, tuple(network), tuple(free), tuple(seen)), free, given

    def definite(self) -> bool:
        """Whether no free state has a flat prior, so that $P$ can be inverted."""
        return all(self.network[name].counts() for name in self.free)

    def quadratic(self, given: dict) -> bool:
        """Whether the loss has the same curvature for every example."""
        whole = not any(isinstance(given[name], Masked) for name in self.seen)
        return whole and all(self.network[name].loss is squared_error for name in self.seen)

    def weights(self) -> dict[Name, Array]:
        """$P$, like the coordinates."""
        return {name: jnp.asarray(self.network[name].precision) for name in self.free}

    def unfold(self, v: dict, given: dict) -> tuple[dict[Name, Array], dict[Name, Array]]:
        """The states, and the predictions of those that something predicts."""
        z, predicted = {}, {}
        for name in self.names:
            prediction = self.network[name].predict(z, predictor(name))
            if prediction is not None:
                whole = given[name].value if isinstance(given[name], Masked) else given[name]
                check_shape(name, v.get(name, whole), prediction)
                predicted[name] = prediction
            if name not in v:
                z[name] = given[name]
                continue
            free = v[name] if prediction is None else self._meet(name, prediction, v[name])
            z[name] = free if given[name] is None else given[name].fill(free)
        return z, predicted

    def _meet(self, name: Name, prediction: Array, error: Array) -> Array:
        """A prediction and an error."""
        bends = dict(self.bends)
        if name not in bends:
            return prediction + error
        precision = jnp.broadcast_to(self.network[name].precision, error.shape)
        return hold(bends[name], prediction, error, precision.astype(error.dtype))

    def bending(self, bends: dict[Name, float]) -> "Unfolded":
        """The same network, some of whose states bend what follows."""
        return dataclasses.replace(self, bends=tuple(bends.items()))

    def held(self, v: dict, predicted: dict) -> dict[Name, Array]:
        """The errors with which units are where they are held."""
        at = {name: held_error(slope, predicted[name], v[name]) for name, slope in self.bends}
        return {**v, **at}

    def foresee(self, given: dict) -> dict[Name, Array]:
        """What is predicted from given states alone, and so does not depend on the errors."""
        whole = lambda name: not (given[name] is None or isinstance(given[name], Masked))
        known = lambda node: node.parents and all(map(whole, node.parents))
        some = {name: node for name, node in self.network.items() if known(node)}
        enters = lambda node: {parent: given[parent] for parent in node.parents}
        made = {name: n.predict(enters(n), predictor(name)) for name, n in some.items()}
        return {name: value for name, value in made.items() if value is not None}

    def knowing(self, predicted: dict[Name, Array]) -> "Unfolded":
        """The same network, which need not predict again what was foreseen."""
        known = lambda node, prediction: dataclasses.replace(
            node, fn=_Known(prediction), parents=()
        )
        new = {name: known(self.network[name], value) for name, value in predicted.items()}
        return dataclasses.replace(self, network={**self.network, **new})

    def predict(self, v: dict, given: dict) -> tuple[dict[Name, Array], dict[Name, Array]]:
        r"""$\hat y$ and all states."""
        z, predicted = self.unfold(v, given)
        return {name: predicted[name] for name in self.seen}, z

    def coordinates(self, free: dict, given: dict) -> dict[Name, Array]:
        """The errors of some states."""
        z = states(free, given)
        predicted = predictions(self.network, z, compared=True)
        errors = {n: z[n] - predicted[n] if n in predicted else z[n] for n in self.free}
        return inferred(errors, {name: given[name] for name in self.free})

    def potential(self, free: dict, given: dict) -> Scalar:
        """The energy of some states."""
        return total(costs(self.network, free, given))

    def loss(self, predicted: dict[Name, Array], given: dict) -> Scalar:
        """Of the predictions of what is given."""
        terms = []
        for name in self.seen:
            with naming(name):
                terms.append(self.network[name].given_cost(predicted[name], given[name]))
        return total(terms)

    def own(self, v: dict) -> Array:
        """$P v$, in one vector."""
        for name, z in v.items():
            with naming(name):
                self.network[name].check_precision(z.shape)
        return ravel(jax.tree.map(jnp.multiply, v, self.weights()))

    def energy(self, v: dict, given: dict) -> Scalar:
        predicted, _ = self.predict(v, given)
        return 0.5 * jnp.vdot(ravel(v), self.own(v)) + self.loss(predicted, given)


class _Known(eqx.Module):
    """A prediction that was made before."""

    value: Array

    def __call__(self) -> Array:
        return self.value


def ravel(tree: PyTree) -> Array:
    """All numbers in one vector: what is done to it is compiled once, not once a layer."""
    return ravel_pytree(tree)[0]
