"""Checks of numbers at run time.

A program can check its numbers itself and raise, through its host. That makes an accelerator wait,
keeps a compiled program out of JAX's cache, and shows the stack of the call that was traced rather
than of the one that failed. So our calls run a program that turns what fails a check into NaNs
instead. If there are any in what it returns, they run the program that says why.
"""

import contextlib
import functools as ft
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Int, PyTree

_F = TypeVar("_F", bound=Callable)
Failure = Literal["default", "raise", "nan"]
_ON_ERROR: ContextVar[Failure] = ContextVar("on_error", default="default")

REMEDY = "Check the data, or use smaller weights, a smaller step size, a smaller learning rate."


@contextlib.contextmanager
def checks(on_error: Failure) -> Iterator[None]:
    """What a check that fails does in what is traced in here: by default, what `EQX_ON_ERROR`
    says, or else raise; raise whatever it says; or leave NaNs that somebody looks for later.
    """
    token = _ON_ERROR.set(on_error)
    try:
        yield
    finally:
        _ON_ERROR.reset(token)


def checked_jit(fn: _F) -> _F:
    """`eqx.filter_jit`, with checks: in the program if it is part of a larger one, else of what it
    returns.
    """

    @eqx.filter_jit
    def traced(on_error: Failure, args: Any, kwargs: Any) -> Any:
        with checks(on_error):
            return fn(*args, **kwargs)

    @eqx.filter_jit
    def marked(args: Any, kwargs: Any) -> tuple[Any, Bool[Array, ""]]:
        with checks("nan"):
            answer = fn(*args, **kwargs)
        return answer, _any_nan(answer)

    def call(*args, **kwargs):
        on_error, leaves = _ON_ERROR.get(), jax.tree.leaves((args, kwargs))
        if on_error != "default" or any(isinstance(x, Tracer) for x in leaves):
            return traced(on_error, args, kwargs)
        answer, failed = _in_words(lambda: marked(args, kwargs))
        if isinstance(failed, Tracer):
            return traced(on_error, args, kwargs)
        if failed:
            _in_words(lambda: jax.block_until_ready(traced("raise", args, kwargs)))
        return answer

    return ft.wraps(fn)(call)  # pyright: ignore[reportReturnType]


def _in_words(run: Callable[[], Any]) -> Any:
    """Checks that fail, ours and those of the libraries, say why in a line."""
    try:
        return run()
    except eqx.EquinoxRuntimeError as error:
        raise RuntimeError(words_of(error)) from None


def words_of(error: Exception) -> str:
    """What an error says, without the stacks that Equinox puts around it."""
    said = str(error).rpartition("EquinoxRuntimeError: ")[2]
    return said.partition("\n\n---")[0].strip()


def raise_if_not_finite(named: dict[str, PyTree], token: PyTree) -> PyTree:
    """Returns `token`, or raises a run-time error that names the first tree with a NaN or an
    infinity in it.
    """
    return raise_if({not_finite(name): ~all_finite(tree) for name, tree in named.items()}, token)


def not_finite(name: str) -> str:
    return f"{name} is not finite (NaN or infinity). {REMEDY}"


def raise_if(problems: dict[str, Bool[Array, ""]], token: PyTree) -> PyTree:
    """Returns `token`, or raises a run-time error with the first message whose value is true."""
    bad = jnp.array(list(problems.values()))
    return _raise_if(jnp.any(bad), jnp.argmax(bad), list(problems), token)


def raise_if_failed(result: Any, failed: Bool[Array, ""], token: PyTree) -> PyTree:
    """Returns `token`, or raises the message of a result."""
    return _raise_if(failed, result._value, result._enumeration._index_to_message, token)


def _raise_if(
    failed: Bool[Array, ""], index: Int[Array, "..."], messages: list[str], token: PyTree
) -> PyTree:
    on_error = _ON_ERROR.get()
    if on_error == "nan":
        return _mark(failed, token, jnp.nan)
    passed = jnp.asarray(True)
    passed = eqx.branched_error_if(passed, failed, index, messages, on_error=on_error)
    return _once(passed, token)


def _once(passed: Bool[Array, ""], tree: PyTree) -> PyTree:
    """A tree that is not there before a check has passed. Through the check itself goes one bit
    only: it runs on one device, and on several its arrays would all have to go there and back.
    """
    return _mark(~passed, tree, 0.0)


def _mark(where: Bool[Array, ""], tree: PyTree, value: float) -> PyTree:
    """Marks the first array of a tree, from which it spreads. To mark all of them would take long
    to compile.
    """
    leaves, structure = jax.tree.flatten(tree)
    for i, leaf in enumerate(leaves):
        if eqx.is_inexact_array(leaf):
            leaves[i] = jnp.where(jax.lax.optimization_barrier(where), value, leaf)
            break
    return jax.tree.unflatten(structure, leaves)


def _any_nan(tree: PyTree) -> Bool[Array, ""]:
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return jnp.any(jnp.array([jnp.any(jnp.isnan(leaf)) for leaf in arrays]))


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in arrays]))
