"""What people give: each thing is what it should be, or an error says what to write instead.

Everything here is known from types and shapes, or from numbers that are known: what is traced
passes, and nothing of it is in a compiled program.
"""

import inspect
import math
import textwrap
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

_ARRAYS = jax.Array | np.ndarray | np.generic
_NO_MODEL = Iterator | Set | Mapping | str | bytes | _ARRAYS
_LARGEST = 2**31  # Of sizes: an array of more units would have no place.


def show(value: Any) -> str:
    """A value in an error message."""
    return textwrap.shorten(repr(value), 80, placeholder=" ...")


def choice(name: str, value: Any, choices: Sequence[Any]) -> Any:
    if not (isinstance(value, str | int | np.bool_) and value in choices):
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"Unknown {name} {show(value)}: choose from {listed}.")
    return value


def check_flags(**flags: Any) -> None:
    for name, flag in flags.items():
        choice(name, flag, (False, True))


def check_type(name: str, value: Any, kind: Any, example: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be something like {example}, got {show(value)}.")


def check_callable(name: str, value: Any, example: str) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be a function, such as {example}, got {show(value)}.")


def check_call(who: str, name: str, fn: Any, *args: str, named: Sequence[str] = ()) -> None:
    """That a function can be called in the way in which it will be."""
    try:
        inspect.signature(fn).bind(*args, **dict.fromkeys(named))
    except TypeError as error:
        call = ", ".join([*args, *(f"{each}=..." for each in named)])
        raise TypeError(f"{who} calls {name}({call}), which it does not take: {error}.") from None
    except ValueError:  # One that has no signature.
        return


def check_number(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    hint: str = "",
) -> None:
    """That it is a real number, and a finite one within bounds unless it is traced."""
    if not is_real(value) or np.shape(value) != ():
        raise ValueError(f"{name} must be a number, got {show(value)}.")
    if isinstance(value, Tracer):
        return
    known = float(value)
    if not (math.isfinite(known) and above < known <= most and known >= least):
        lower = f" above {above:g}" if above > least else f" of at least {least:g}"
        bounds = "" if max(above, least) == -math.inf else lower
        bounds += f" and at most {most:g}" if most < math.inf else ""
        raise ValueError(f"{name} must be a finite number{bounds}, got {known:g}.{hint}")


def is_real(value: Any) -> bool:
    """Whether it is a real number, or an array of them. What is true or false is none."""
    if isinstance(value, int | float):
        return not isinstance(value, bool)
    if not isinstance(value, _ARRAYS) or isinstance(value, np.ma.MaskedArray):
        return False  # JAX would forget a mask.
    kind = value.dtype  # Of a key it is none of NumPy's.
    real = isinstance(kind, np.dtype) and kind.kind in "fiu"
    return real or jnp.issubdtype(kind, jnp.floating)


def is_half(value: Any) -> bool:
    """Whether it is an array of floats with fewer than 32 bits."""
    if not isinstance(value, _ARRAYS) or value.dtype.itemsize >= 4:
        return False
    return jnp.issubdtype(value.dtype, jnp.floating)


def refuse_half(name: str, tree: Any) -> None:
    """That no array of a tree is in half precision."""
    for leaf in jax.tree.leaves(tree):
        if is_half(leaf):
            raise TypeError(
                f"{name} must be float32 or float64, got {leaf.dtype}: errors are differences of "
                "numbers that are nearly equal, and are lost with so few digits. Write "
                "jax.tree.map(lambda x: x.astype(jnp.float32), ...)."
            )


def check_numbers(name: str, tree: Any) -> None:
    """That the arrays of a tree are none of words or objects, which no program can take."""
    for leaf in jax.tree.leaves(tree):
        if _is_no_number(leaf):
            raise TypeError(f"{name} must be arrays of numbers, got {show(leaf)}.")


def check_takes(name: str, tree: Any) -> None:
    """That a program can take a tree, or have it fixed."""
    for leaf in jax.tree.leaves(tree):
        if _is_no_number(leaf) or not isinstance(leaf, Hashable | _ARRAYS):
            raise TypeError(
                f"{name} holds what no program can take: give numbers and arrays of numbers, got "
                f"{show(leaf)}."
            )


def _is_no_number(leaf: Any) -> bool:
    if not isinstance(leaf, np.ndarray | np.generic):
        return False
    masked = isinstance(leaf, np.ma.MaskedArray)  # JAX would forget its mask.
    return masked or leaf.dtype.kind in "OUSMm" or leaf.dtype.names is not None


def check_count(name: str, value: Any, *, least: int = 1, none: bool = False) -> None:
    """That it is a whole number, or `None` where that means something."""
    if none and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        instead = ", or None" if none else ""
        raise ValueError(
            f"{name} must be a whole number of at least {least}{instead}: got {show(value)}."
        )


def check_sizes(**sizes: Any) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ValueError(f"Sizes must be positive integers, got {name}={show(size)}.")
        if size >= _LARGEST:
            raise ValueError(f"Sizes must be below 2**31, got {name}={show(size)}.")


def check_model(name: str, model: Any, *, holes: bool = False) -> None:
    """A list of callables, `None` among them where there may be holes."""
    kind = lambda x: type(x).__name__
    if isinstance(model, _NO_MODEL) or not isinstance(model, Iterable):
        expected = "a list of layers (callables on one example, as jpc.make_mlp makes)"
        raise TypeError(f"{name} must be {expected}, got {kind(model)}.")
    if not (layers := list(model)):
        raise ValueError(f"{name} has no layers.")
    for i, layer in enumerate(layers, start=1):
        if not (callable(layer) or (holes and layer is None)):
            raise TypeError(f"Layer {i} of {name} is not callable: got {kind(layer)}.")
        if not (layer is None or _shows_itself(type(layer))):  # It is asked in every call.
            check_layer(f"Layer {i} of {name}", layer)


def _shows_itself(kind: type) -> bool:
    """Whether it is that of modules that wrap nothing."""
    return issubclass(kind, eqx.Module) and not hasattr(kind, "__wrapped__")


def check_layer(name: str, layer: Any) -> None:
    """That a callable is no class, and that its parameters are seen."""
    if isinstance(layer, type):
        raise TypeError(f"{name} is a class: make a layer of it, {layer.__name__}(...).")
    inner = inspect.unwrap(layer)
    if inner is not layer and _arrays_in(inner) and not _arrays_in(layer):
        raise TypeError(
            f"{name} hides its parameters, which would not learn: give the layer itself, as "
            "compiling is our part, or use eqx.filter_jit and eqx.filter_vmap for jax.jit and "
            "jax.vmap."
        )


def _arrays_in(layer: Any) -> bool:
    return any(isinstance(leaf, _ARRAYS) for leaf in jax.tree.leaves(layer))


def split_key(key: Any, num: int) -> Array:
    try:
        return jr.split(key, num)
    except (TypeError, ValueError):
        raise TypeError(f"key must be a single jax.random.key(seed), got {show(key)}.") from None


def check_key(key: Any) -> None:
    """That it is one, or `None`."""
    array = isinstance(key, jax.Array | np.ndarray)
    typed = array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ()
    raw = array and key.dtype == np.uint32 and key.ndim == 1
    if not (key is None or typed or raw):
        raise TypeError(f"key must be a single jax.random.key(seed), got {show(key)}.")


def as_batch(name: str, value: Any) -> Array:
    """An array of real numbers with a batch axis."""
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # By what it is of.
        array = None
    if array is None or jnp.iscomplexobj(array):
        raise TypeError(f"{name} must be an array of real numbers, got {show(value)}.")
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"{name} needs a batch of examples, got shape {array.shape}.")
    return array
