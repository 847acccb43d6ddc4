"""The words of the library.

A network of L layers is a chain of states z_0 ... z_L. `Nodes` and `Clamps` are both lists over
that chain, with `None` wherever the other one holds a value: the nodes are inferred, the clamps
are given, and `jpc.states(nodes, clamps)` is the whole chain. A network whose states have names
has dictionaries in the place of lists.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from jaxtyping import Array, Float, PyTree

Scalar: TypeAlias = Float[Array, ""]
"""A number that is an array, such as the value of an energy."""
Layers: TypeAlias = Sequence[Callable]
"""The layers of a network in chain order, callables on one example."""
Name: TypeAlias = int | str
Nodes: TypeAlias = list[PyTree[Array]] | dict[Any, Any]
"""The states that are inferred, each with the batch as its first axis: a list over a chain, or a
dictionary by name, with `None` for states that are given.
"""
Clamps: TypeAlias = list[PyTree[Array]] | dict[Any, Any]
"""The states that are given, in the same form, with `None` for states that are inferred. A state
that is given in part is a [`jpc.Masked`][].
"""
Number: TypeAlias = float | int | Float[Array, ""]
Loss: TypeAlias = Callable[[Array, Array], Scalar]
"""What an error at the output costs: a function of the target and the prediction of an example."""
Terms: TypeAlias = PyTree[Scalar]

_T = TypeVar("_T")
# What people give. For a type checker that is an X. What does not fit gets a message from us, so
# that at run time the annotation must allow everything.
if TYPE_CHECKING:
    Given: TypeAlias = Annotated[_T, "given"]
else:
    Given: TypeAlias = _T | Any
