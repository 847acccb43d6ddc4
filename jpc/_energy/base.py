import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from .._clamp import check_batch
from .._given import check_number, is_real, refuse_half, show
from .._types import Clamps, Given, Nodes, Number, Scalar, Terms


def total(terms: Terms) -> Scalar:
    """The sum of all scalars of a tree, in one go: a chain of additions is slow to compile."""
    leaves = jax.tree.leaves(terms)
    return jnp.sum(jnp.stack(leaves)) if leaves else jnp.asarray(0.0)


class AbstractEnergy(eqx.Module):
    r"""What predictive coding descends: first in the nodes (inference), then in the
    parameters (learning),

    $$F(\theta, z) = \frac{1}{N} \sum_{i=1}^N \sum_t F_t(\theta, z_i).$$

    A new energy says what its terms are for one example, and nothing else. Every method of
    inference, every recorder and every trainer works with it, and `jax.grad` makes its
    gradients. You can add, subtract and scale energies: `0.5 * a - b`.

    An energy that stops some of its gradients (`jax.lax.stop_gradient`) may grow during
    inference, and has to say so: see `descends`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    class Absolute(jpc.AbstractEnergy):
        def terms(self, params, nodes, clamps):
            z = jpc.states(nodes, clamps)
            errors = [after - layer(before) for layer, before, after in zip(params, z, z[1:])]
            return [jnp.sum(jnp.abs(error)) for error in errors]

    value = Absolute()(model, nodes, clamps)
    ```
    """

    @abc.abstractmethod
    def terms(self, params: PyTree, nodes: Nodes, clamps: Clamps) -> Terms:
        """The terms of the energy of one example, in chain order.

        **Arguments:**

        - `params`: what is learned; for a chain its layers, callables on one example.
        - `nodes`: what is inferred, a list over the chain, `None` where a state is given.
        - `clamps`: what is given, a list over the chain, `None` where a state is inferred.

        **Returns:**

        Any PyTree of scalars.
        """

    def example(self, params: PyTree, nodes: Nodes, clamps: Clamps) -> Scalar:
        """The energy of one example: the sum of its terms."""
        return total(_check_terms(self.terms(params, nodes, clamps)))

    def layerwise(self, params: PyTree, nodes: Nodes, clamps: Clamps) -> Terms:
        """The mean over the batch of each term."""
        check_batch(nodes, clamps)
        refuse_half("params", params)
        refuse_half("nodes and clamps", (nodes, clamps))
        terms = jax.vmap(lambda n, c: _check_terms(self.terms(params, n, c)))(nodes, clamps)
        return jax.tree.map(jnp.mean, terms)

    def __call__(self, params: PyTree, nodes: Nodes, clamps: Clamps) -> Scalar:
        """The energy of a batch: the mean over its examples."""
        return total(self.layerwise(params, nodes, clamps))

    def descends(self) -> bool | Bool[Array, ""]:
        """Whether small steps against the gradient in the nodes make the energy smaller. That is
        true of every energy that does not stop some of its gradients. If it is false, methods of
        inference do not report divergence when the energy grows.
        """
        return True

    def __add__(self, other: Given["AbstractEnergy"]) -> "AddEnergy":
        return AddEnergy(self, other)

    def __sub__(self, other: Given["AbstractEnergy"]) -> "AddEnergy":
        return AddEnergy(self, -1.0 * _check_energy(other))

    def __mul__(self, factor: Given[Number]) -> "ScaledEnergy":
        return ScaledEnergy(factor, self)

    __rmul__ = __mul__

    def __truediv__(self, number: Any) -> "AbstractEnergy":
        raise TypeError(
            "Numbers multiply an energy, and nothing divides it: write 0.5 * energy, got energy "
            f"/ {show(number)}."
        )

    def __radd__(self, other: Any) -> "AbstractEnergy":
        raise _no_energy(other)

    __rsub__ = __radd__


def _no_energy(given: Any) -> TypeError:
    return TypeError(
        f"Only energies can be added to an energy, got {show(given)}. A number multiplies it: "
        "2.0 * energy."
    )


def _check_energy(energy: Any) -> AbstractEnergy:
    if not isinstance(energy, AbstractEnergy):
        raise _no_energy(energy)
    return energy


def _check_terms(terms: Any) -> Terms:
    if terms is None:
        raise TypeError("Terms of an energy are numbers, but terms(...) returned None.")
    for path, term in jax.tree.leaves_with_path(terms, is_leaf=lambda term: term is None):
        which = f"terms(...){jax.tree_util.keystr(path)}"
        if not is_real(term):
            raise TypeError(f"Terms of an energy are real numbers, but {which} is {show(term)}.")
        if np.shape(term) != ():
            raise ValueError(
                f"Terms of an energy are numbers, for one example, but {which} has the shape "
                f"{np.shape(term)}: sum over its units."
            )
    return terms


class AddEnergy(AbstractEnergy):
    """The sum of two energies. Its terms are a pair, the terms of one and those of the other.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    both = jpc.PCEnergy() + jpc.WeightDecay(0.1)  # An AddEnergy.
    parts = energy(model, nodes, clamps) + jpc.WeightDecay(0.1)(model, nodes, clamps)
    difference = both(model, nodes, clamps) - parts  # 0.0
    ```
    """

    first: Given[AbstractEnergy]
    second: Given[AbstractEnergy]

    def __check_init__(self):
        _check_energy(self.first)
        _check_energy(self.second)

    def terms(self, params: Any, nodes: Nodes, clamps: Clamps) -> Terms:
        return self.first.terms(params, nodes, clamps), self.second.terms(params, nodes, clamps)

    def descends(self) -> bool | Bool[Array, ""]:
        return self.first.descends() & self.second.descends()


class ScaledEnergy(AbstractEnergy):
    """An energy times a number. Its terms are multiplied by the same number.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    half = 0.5 * jpc.PCEnergy()  # A ScaledEnergy.
    difference = 2 * half(model, nodes, clamps) - energy(model, nodes, clamps)  # 0.0
    ```
    """

    factor: Given[Number]
    energy: Given[AbstractEnergy]

    def __check_init__(self):
        if not is_real(self.factor) or np.shape(self.factor) != ():
            raise TypeError(f"Only numbers multiply an energy, got {show(self.factor)}.")
        check_number("What multiplies an energy", self.factor)
        _check_energy(self.energy)

    def terms(self, params: Any, nodes: Nodes, clamps: Clamps) -> Terms:
        scale = lambda term: self.factor * term
        return jax.tree.map(scale, self.energy.terms(params, nodes, clamps))

    def descends(self) -> bool | Bool[Array, ""]:
        return self.energy.descends()
