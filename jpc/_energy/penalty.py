from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._clamp import inferred
from .._given import check_count, check_number, check_type
from .._types import Clamps, Given, Name, Nodes, Number, Scalar
from .base import AbstractEnergy
from .network import AbstractNetworkEnergy, AbstractPenalty, Network, Node


def _weights(params: PyTree) -> list[Array]:
    # Weights are arrays of at least two axes, whatever kind of layer they sit in; a
    # convolution's bias has as many, hence the name.
    return [
        leaf
        for path, leaf in jax.tree.leaves_with_path(params)
        if isinstance(leaf, jax.Array) and leaf.ndim >= 2 and ".bias" not in map(str, path)
    ]


def _total(scalars: Iterable[Scalar]) -> Scalar:
    return sum(scalars, start=jnp.asarray(0.0))


def _check_coefficient(penalty: Any) -> None:
    hint = " With less than none an energy has no minimum; to take a penalty away, subtract it."
    check_number("coefficient", penalty.coefficient, least=0.0, hint=hint)


class WeightDecay(AbstractPenalty):
    r"""$\frac{c}{2} \sum_\ell \lVert W_\ell \rVert^2$ over the weights of every layer.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    decayed = jpc.PCEnergy() + jpc.WeightDecay(1e-3)
    value = decayed(model, nodes, clamps)
    ```
    """

    coefficient: Given[Number]

    def __check_init__(self):
        _check_coefficient(self)

    def penalty(self, params: PyTree) -> Scalar:
        return 0.5 * self.coefficient * _total(jnp.sum(w**2) for w in _weights(params))


class SpectralPenalty(AbstractPenalty):
    r"""$\frac{c}{2} \sum_\ell \lVert I - W_\ell^T W_\ell \rVert^2$ over the weights of every
    layer; those with more than two axes as matrices with their first axis as rows.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    penalty = jpc.SpectralPenalty(0.1)(model, nodes, clamps)
    ```
    """

    coefficient: Given[Number]

    def __check_init__(self):
        _check_coefficient(self)

    def penalty(self, params: PyTree) -> Scalar:
        matrices = [w.reshape(w.shape[0], -1) for w in _weights(params)]
        gaps = [jnp.eye(w.shape[1], dtype=w.dtype) - w.T @ w for w in matrices]
        return 0.5 * self.coefficient * _total(jnp.sum(gap**2) for gap in gaps)


class ActivityDecay(AbstractEnergy):
    r"""$\frac{c}{2} \sum_\ell \lVert z_\ell \rVert^2$ over the states that are inferred.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    decayed = jpc.PCEnergy() + jpc.ActivityDecay(0.1)
    value = decayed(model, nodes, clamps)
    ```
    """

    coefficient: Given[Number]

    def __check_init__(self):
        _check_coefficient(self)

    def terms(self, params: PyTree, nodes: Nodes, clamps: Clamps) -> Scalar:
        del params
        free = jax.tree.leaves(inferred(nodes, clamps))
        return 0.5 * self.coefficient * _total(jnp.sum(z**2) for z in free)


class GaussianPrior(AbstractNetworkEnergy):
    r"""$\frac{c}{2} \lVert z_0 \rVert^2$ on the first state, as far as it is inferred.

    **Arguments:**

    - `coefficient`: $c$.
    - `node`: the name of another state, one that nothing predicts.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    generative = jpc.PCEnergy() + jpc.GaussianPrior(1.0)
    free, given = jpc.clamp([x, *activities[:-1]], y)  # No input: z_0 is inferred.
    value = generative(model, free, given)
    ```
    """

    coefficient: Given[Number]
    node: Given[Name] = 0

    def __check_init__(self):
        _check_coefficient(self)
        check_type("node", self.node, Name, "0, or the name of a state")
        if isinstance(self.node, int):
            check_count("node", self.node, least=0)

    def network(self, params: PyTree) -> Network:
        del params
        return {self.node: Node(precision=self.coefficient)}
