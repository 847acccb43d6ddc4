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
Layers: TypeAlias = Sequence[Callable]
Name: TypeAlias = int | str
Nodes: TypeAlias = list[PyTree[Array]] | dict[Any, Any]
Clamps: TypeAlias = list[PyTree[Array]] | dict[Any, Any]
Number: TypeAlias = float | int | Float[Array, ""]
# Of a target and a prediction, for one example.
Loss: TypeAlias = Callable[[Array, Array], Scalar]
Terms: TypeAlias = PyTree[Scalar]

_T = TypeVar("_T")
# What people give. For a type checker that is an X. What does not fit gets a message from us, so
# that at run time the annotation must allow everything.
if TYPE_CHECKING:
    Given: TypeAlias = Annotated[_T, "given"]
else:
    Given: TypeAlias = _T | Any
