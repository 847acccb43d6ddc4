import functools as ft
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree


def floats_to_arrays(tree: PyTree) -> PyTree:
    """Python's floats as arrays, so that they are traced rather than compiled in. Zero stays: it
    says that something is not there.
    """
    return jax.tree.map(lambda x: constant(x) if isinstance(x, float) and x else x, tree)


def constant(value: Any) -> Array:
    if type(value) is float:
        return _remembered(value, cast(Any, jax.config).jax_enable_x64)
    return _make(value)


@ft.lru_cache(1024)
def _remembered(value: float, x64: bool) -> Array:
    """The same array for the same number: making it takes longer than most of a call."""
    del x64
    return _make(value)


def _make(value: Any) -> Array:
    with jax.ensure_compile_time_eval():  # In somebody's jit too, its value stays known.
        return jnp.asarray(value)
