"""Checks of numbers at run time."""

import contextlib
import functools as ft
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

_F = TypeVar("_F", bound=Callable)
_ON: ContextVar[bool] = ContextVar("checks", default=True)

REMEDY = "Check the data, or use smaller weights, a smaller step size, a smaller learning rate."


@contextlib.contextmanager
def checks(on: bool) -> Iterator[None]:
    """Whether what is traced in here has its checks. Without them it passes NaNs on, and somebody
    looks at the numbers later: a check makes an accelerator wait for its host.
    """
    token = _ON.set(on)
    try:
        yield
    finally:
        _ON.reset(token)


def checked_jit(fn: _F) -> _F:
    """`eqx.filter_jit`, with and without checks."""

    @eqx.filter_jit
    def traced(on: bool, args: Any, kwargs: Any) -> Any:
        with checks(on):
            return fn(*args, **kwargs)

    return ft.wraps(fn)(lambda *args, **kwargs: traced(_ON.get(), args, kwargs))  # pyright: ignore


def raise_if_not_finite(named: dict[str, PyTree], token: PyTree) -> PyTree:
    """Returns `token`, or raises a run-time error that names the first tree with a NaN or an
    infinity in it.
    """
    return raise_if({not_finite(name): ~all_finite(tree) for name, tree in named.items()}, token)


def not_finite(name: str) -> str:
    return f"{name} is not finite (NaN or infinity). {REMEDY}"


def raise_if(problems: dict[str, Bool[Array, ""]], token: PyTree) -> PyTree:
    """Returns `token`, or raises a run-time error with the first message whose value is true."""
    if not _ON.get():
        return token
    bad = jnp.array(list(problems.values()))
    index, passed = jnp.argmax(bad), jnp.asarray(True)
    return _once(eqx.branched_error_if(passed, jnp.any(bad), index, list(problems)), token)


def raise_if_failed(result: Any, failed: Bool[Array, ""], token: PyTree) -> PyTree:
    """Returns `token`, or raises the message of a result."""
    if not _ON.get():
        return _mark(failed, token, jnp.nan)
    return _once(result.error_if(jnp.asarray(True), failed), token)


def _once(passed: Bool[Array, ""], tree: PyTree) -> PyTree:
    """A tree that is not there before a check has passed. Through the check itself goes one bit
    only: it runs on one device, and on several its arrays would all have to go there and back.
    """
    return _mark(~passed, tree, 0.0)


def _mark(where: Bool[Array, ""], tree: PyTree, value: float) -> PyTree:
    mark = lambda x: jnp.where(where, value, x) if eqx.is_inexact_array(x) else x
    return jax.tree.map(mark, tree)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in arrays]))
