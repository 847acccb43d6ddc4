import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.extend.core import ClosedJaxpr
from jaxtyping import PRNGKeyArray, PyTree

from .._given import check_call, check_callable, show
from .._inference import AbstractInference
from .._layer import traceable
from .loop import Recipe, measure

_CONSTANTS = bool | int | float | complex | str
_ARRAYS = jax.Array | jax.ShapeDtypeStruct
CONVERGED = "converged"  # The metric that tells of a method that is carried along.


def describe(tree: PyTree) -> dict[str, str]:
    """The types and shapes of the arrays in a tree, and its constants, by name."""
    show = lambda x: f"{x.dtype}{list(x.shape)}" if isinstance(x, _ARRAYS) else repr(x)
    return {
        jax.tree_util.keystr(path): show(x)
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
        if isinstance(x, _ARRAYS | _CONSTANTS)
    }


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """The first entry that is not the same, in words."""
    for name in [*old, *new]:
        pair = [entries.get(name, "missing") for entries in (old, new)]
        if pair[0] != pair[1]:
            return f"{name} was {pair[0]}, and is now {pair[1]}"
    return None


_TAKES = dict(pace=("seconds",), sharding=("name", "array"))  # What it is called with.


def check_hooks(step: Any, **others: Any) -> None:
    """That they are functions, or `None` where they may be left out."""
    check_callable("step", step, "jpc.make_pc_step")
    for name, given in others.items():
        if given is not None:
            check_callable(name, given, f"def {name}(...)")
            if name in _TAKES:
                check_call("fit", name, given, *_TAKES[name])


def check_listed(name: str, given: Any, kind: Any, example: str) -> None:
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    if not (listed and all(isinstance(entry, kind) for entry in given)):
        raise TypeError(f"{name} must be a list or a tuple like {example}, got {show(given)}.")


def _check_takes(name: str, fn: Callable, state: Mapping[str, Any]) -> None:
    """That it can be called with a state and a batch."""
    check_call("fit", name, fn, named=[*state, "output", "input", "key"])


class Checked(NamedTuple):
    """What is known of a step before it is compiled: the shapes of its metrics, its program, and
    of the method of inference to carry along, if there is one, the shapes and the rest.
    """

    sums: PyTree
    program: ClosedJaxpr
    method: tuple[PyTree, PyTree]


def check_step(recipe: Recipe, state: PyTree, batch: PyTree, key: PRNGKeyArray) -> Checked:
    """Refuses a step that does not have the shape of one, before it is compiled."""
    _check_takes("step", recipe.fn, recipe.rest)
    with traceable("step"):
        result, program = _trace(recipe, state, batch, key)
    if not isinstance(result, Mapping):
        raise TypeError(f"A step returns a dictionary, but this one a {type(result).__name__}.")
    listed = ", ".join(map(str, result))
    if missing := [name for name in recipe.rest if name not in result]:
        raise ValueError(
            f"A step returns all of the state for the next one, but {', '.join(missing)} is not "
            f"in the dictionary that this one returns: {listed}."
        )
    old, new = eqx.combine(state, recipe.rest), {name: result[name] for name in recipe.rest}
    if changed := first_difference(describe(old), describe(new)):
        raise ValueError(
            "A step must leave the structure, the shapes and the types of the state as they "
            f"are, and may change nothing but arrays: {changed}."
        )
    if unknown := [name for name in recipe.metrics if name not in result]:
        raise ValueError(f"metrics has {', '.join(unknown)}, but a step returns {listed}.")
    for name in recipe.metrics:
        if not all(isinstance(x, _ARRAYS | int | float) for x in jax.tree.leaves(result[name])):
            raise TypeError(
                f"metrics has {name}, which is not made of arrays and numbers, so that it has no "
                "mean over an epoch."
            )
    method = _carried(recipe, result)
    told = () if method is None or CONVERGED in recipe.metrics else (CONVERGED,)
    sums = eqx.filter_eval_shape(measure, (*recipe.metrics, *told), result)
    return Checked(sums, program, eqx.partition(method, _is_shape))


def _is_shape(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)


def _carried(recipe: Recipe, result: Mapping[str, Any]) -> AbstractInference | None:
    """The method that a step returns to go on with, if it takes it back."""
    method = result.get("inference")
    if "inference" in recipe.rest or not isinstance(method, AbstractInference):
        return None
    names = [*recipe.rest, "output", "input", "key", "inference"]
    try:
        inspect.signature(recipe.fn).bind(**dict.fromkeys(names))
    except (TypeError, ValueError):
        return None
    return method if CONVERGED in result else None


def _trace(recipe: Recipe, *given: PyTree) -> tuple[PyTree, ClosedJaxpr]:
    """What a recipe returns, with shapes for arrays, and the program that it is."""
    program, shapes, rest = eqx.filter_make_jaxpr(recipe)(*given)
    return eqx.combine(shapes, rest), program


def check_evaluation(recipe: Recipe, state: PyTree, batch: PyTree) -> tuple[PyTree, ClosedJaxpr]:
    """Refuses a way to evaluate that does not say metrics of one example, before training;
    returns their shapes, and its program.
    """
    _check_takes("evaluate", recipe.fn, recipe.rest)
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), batch)
    with traceable("evaluate"):
        result, program = _trace(recipe, state, one, jax.random.key(0))
    leaves = jax.tree.leaves(result)
    number = lambda x: isinstance(x, jax.ShapeDtypeStruct) and isinstance(x.dtype, np.dtype)
    if not (isinstance(result, Mapping) and all(map(number, leaves))):
        raise TypeError(
            "evaluate must return a dictionary of arrays of numbers, such as dict(loss=loss)."
        )
    return result, program


def scalars(shapes: Mapping[str, Any]) -> list[str]:
    """The names of the plain numbers among some metrics."""
    return [name for name, x in shapes.items() if isinstance(x, _ARRAYS) and x.shape == ()]
