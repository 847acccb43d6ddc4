"""Checks of numbers at run time.

A program can check its numbers itself and raise, through its host. That makes an accelerator wait,
keeps a compiled program out of JAX's cache, and shows the stack of the call that was traced rather
than of the one that failed. So our calls run a program that turns what fails a check into NaNs
instead. If it returns any, they run the program that says why.

In the same way a call on the CPU tries first without what is seldom needed and takes long to
compile. If that is needed, the program without it returns NaNs, and the call runs the whole one.
"""

import contextlib
import functools as ft
import inspect
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Int, PyTree

from ._device import accelerated, rounds_products
from ._fixed import Fixed, join, split
from ._given import check_takes

_F = TypeVar("_F", bound=Callable)
Failure = Literal["default", "raise", "nan", "try"]
Options = tuple[tuple[str, Any], ...]
_ON_ERROR: ContextVar[Failure] = ContextVar("on_error", default="default")
_TRIED: ContextVar[list | None] = ContextVar("tried", default=None)
_HASTY: ContextVar[bool] = ContextVar("hasty", default=False)

REMEDY = "Check the data, or use smaller weights, a smaller step size, a smaller learning rate."


@contextlib.contextmanager
def checks(on_error: Failure) -> Iterator[None]:
    """What a check that fails does in what is traced in here: by default, what `EQX_ON_ERROR`
    says, or else raise; raise whatever it says; or leave NaNs that somebody looks for later. So
    it is in a first try, too.
    """
    token = _ON_ERROR.set(on_error)
    try:
        yield
    finally:
        _ON_ERROR.reset(token)


def checked_jit(fn: _F) -> _F:
    """A function as a compiled program of arrays, everything else being fixed, with checks: in the
    program if it is part of a larger one, else of what it returns.

    On the CPU what failed raises at once. An accelerator is not waited for: there one of the next
    few calls raises it, and the very next one if it comes after a while.
    """

    @eqx.filter_jit
    def traced(on_error: Failure, args: Any, kwargs: Any) -> Any:
        with checks(on_error):
            return fn(*args, **kwargs)

    def marked(on_error: Failure, fixed: Hashable, arrays: list) -> tuple[Fixed, list, Array]:
        args, kwargs = join(fixed, arrays)
        with checks(on_error), _noting_tries() as tried:
            fixed, arrays = split(fn(*args, **kwargs))
        return Fixed((fixed, bool(tried))), arrays, _any_marked(arrays)

    @ft.cache
    def compiled(options: Options) -> Callable:
        return jax.jit(marked, static_argnums=(0, 1), compiler_options=dict(options) or None)

    needed: set[Hashable] = set()  # What a first try was not enough for.

    def call(*args, **kwargs):
        on_error, (fixed, arrays) = _ON_ERROR.get(), split((args, kwargs))
        if on_error != "default" or any(isinstance(x, Tracer) for x in arrays):
            return traced(on_error, args, kwargs)
        program = compiled(_options())
        run = lambda how: in_words(lambda: program(how, fixed, arrays))
        try:
            tries = not (accelerated() or (needed and fixed in needed))
            rest, made, failed = run("try" if tries else "nan")
        except (TypeError, ValueError):
            _blame(fn, args, kwargs)
            raise
        if isinstance(failed, Tracer):  # Of arrays that are known, in somebody's jit.
            return traced(on_error, args, kwargs)
        if tries and rest.value[1] and failed:
            needed.add(fixed)
            rest, made, failed = run("nan")
        size = sum(x.size for x in arrays if x is not None)
        _look(_Call(failed, lambda: traced("raise", args, kwargs), size))
        return join(rest.value[0], made)

    return ft.wraps(fn)(call)  # pyright: ignore[reportReturnType]


def _blame(fn: Callable, args: tuple, kwargs: dict) -> None:
    """Names the argument with what no program can take, if there is one."""
    given = inspect.signature(fn).bind(*args, **kwargs).arguments
    if rest := given.pop("args", ()):  # They are those of a function that is given.
        names = list(inspect.signature(given["fn"]).parameters)[-len(rest) :]
        given |= dict(zip(names, rest, strict=True))
    for name, value in given.items():
        check_takes(name, value)


def failing() -> bool:
    """Whether what is traced is to say why something failed, and may take its time for it."""
    return _ON_ERROR.get() == "raise"


@contextlib.contextmanager
def compiling_hastily() -> Iterator[None]:
    """For programs that run a few times only: on the CPU, what is called in here is compiled with
    little optimisation, which is quicker, and then runs more slowly.
    """
    token = _HASTY.set(True)
    try:
        yield
    finally:
        _HASTY.reset(token)


def _options() -> Options:
    """How to compile a call."""
    if jax.default_backend() == "gpu":
        return _in_graphs() + (() if rounds_products() else _untuned())
    return _in_haste() if _HASTY.get() and not accelerated() else ()


@ft.cache
def _in_haste() -> Options:
    quick = (("xla_backend_optimization_level", 0),)
    return _first_known(((*quick, ("xla_cpu_use_fusion_emitters", False)), quick))


@ft.cache
def _in_graphs() -> Options:
    """Loops of the length that they turn out to have go into CUDA graphs, too. The host then need
    not start each of their turns.
    """
    kinds = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE"
    return _first_known(((("xla_gpu_enable_command_buffer", kinds),),))


@ft.cache
def _untuned() -> Options:
    """A product of matrices is rounded alike in all programs, a feedforward pass and predictions
    that are compared with it. Tuned, it may be of another kind in each, and is rounded in its way.
    """
    kinds = ("xla_gpu_autotune_level", 0), ("xla_gpu_enable_triton_gemm", False)
    return _first_known((kinds,))


def _first_known(tries: tuple[Options, ...]) -> Options:
    """The first of some options that this version of XLA knows."""
    for known in tries:
        with contextlib.suppress(jax.errors.JaxRuntimeError, ValueError):
            jax.jit(lambda x: x + 1, compiler_options=dict(known))(0.0)
            return known
    return ()


@contextlib.contextmanager
def _noting_tries() -> Iterator[list]:
    tried: list = []
    token = _TRIED.set(tried)
    try:
        yield tried
    finally:
        _TRIED.reset(token)


def trying() -> bool:
    """Whether what is traced is a first try, which may leave out what is seldom needed."""
    if _ON_ERROR.get() != "try":
        return False
    if (tried := _TRIED.get()) is not None:
        tried.append(True)
    return True


def need_more(where: Bool[Array, ""], tree: PyTree) -> PyTree:
    """Returns `tree`, from a first try that was not enough if `where` is true."""
    return _mark(where, tree, jnp.nan)


class _Call(NamedTuple):
    """A call: whether it failed, what says why, and how many numbers it holds."""

    failed: Array
    again: Callable[[], Any]
    size: int


class _Waiting(threading.local):
    """The calls that were not looked at yet, and when some were last."""

    calls: tuple[_Call, ...] = ()
    looked: float = -math.inf


_WAITING = _Waiting()
_FEW, _SOON, _LITTLE = 8, 0.01, 2**26  # Calls, seconds, and numbers that these hold.


def _look(call: _Call) -> None:
    """Raises what failed: in this call on the CPU, in one before it elsewhere. To look takes an
    accelerator a good part of a short call. So it looks at a few at once, before it has waited for
    long. They have ended, or the device has this one to do meanwhile.
    """
    if not accelerated():
        _raise_first((call,))
        return
    calls, now = _WAITING.calls, time.monotonic()
    waits = len(calls) < _FEW and now - _WAITING.looked < _SOON
    if waits and sum(call.size for call in calls) < _LITTLE:
        _WAITING.calls = (*calls, call)
        return
    _WAITING.calls, _WAITING.looked = (call,), now
    _raise_first(calls)


def _raise_first(calls: tuple[_Call, ...]) -> None:
    """What the first of them that failed says."""
    flags = [call.failed for call in calls]
    flags = jax.device_get(flags) if len(calls) > 1 else flags
    again = [call.again for call, failed in zip(calls, flags, strict=True) if failed]
    if again:
        _WAITING.calls = ()
        in_words(lambda: jax.block_until_ready(again[0]()))


def in_words(run: Callable[[], Any]) -> Any:
    """Checks that fail, ours and those of the libraries, say why in a line."""
    try:
        with _unlogged():
            return run()
    except (eqx.EquinoxRuntimeError, jax.errors.JaxRuntimeError) as error:  # By version of JAX.
        checked = isinstance(error, eqx.EquinoxRuntimeError) or "EquinoxRuntimeError" in str(error)
        if not checked:
            raise
        raise RuntimeError(words_of(error)) from None


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """JAX logs what a program raises through its host, with its stack, and goes on to raise it."""
    logger = logging.getLogger("jax._src.callback")
    other = lambda record: record.getMessage() != "jax.pure_callback failed"
    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)


def words_of(error: Exception) -> str:
    """What an error says, without the stacks that Equinox puts around it."""
    said = str(error).rpartition("EquinoxRuntimeError: ")[2]
    return said.partition("\n\n---")[0].strip()


def raise_if_not_finite(named: dict[str, PyTree], token: PyTree) -> PyTree:
    """Returns `token`, or raises a run-time error that names the first tree with a NaN or an
    infinity in it.
    """
    return raise_if(which_not_finite(named), token)


def which_not_finite(named: dict[str, PyTree]) -> dict[str, Bool[Array, ""]]:
    """Which trees have a NaN or an infinity in them, by message. A program that leaves a mark need
    not tell them apart: the one that says why will.
    """
    if _ON_ERROR.get() in ("nan", "try"):
        return {not_finite(" or ".join(named)): ~all_finite(list(named.values()))}
    return {not_finite(name): ~all_finite(tree) for name, tree in named.items()}


def not_finite(name: str) -> str:
    return f"{name} is not finite (NaN or infinity). {REMEDY}"


def raise_if(problems: dict[str, Bool[Array, ""]], token: PyTree) -> PyTree:
    """Returns `token`, or raises a run-time error with the first message whose value is true."""
    bad = jnp.array(list(problems.values()))
    return _raise_if(jnp.any(bad), jnp.argmax(bad), list(problems), token)


def raise_if_failed(result: Any, failed: Bool[Array, " batch"], token: PyTree) -> PyTree:
    """Returns `token`, or raises the message of the first result that failed."""
    value, messages = result._value[jnp.argmax(failed)], result._enumeration._index_to_message
    return _raise_if(jnp.any(failed), value, messages, token)


def _raise_if(
    failed: Bool[Array, ""], index: Int[Array, "..."], messages: list[str], token: PyTree
) -> PyTree:
    on_error = _ON_ERROR.get()
    if on_error in ("nan", "try"):
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


def _any_marked(arrays: list) -> Bool[Array, ""]:
    """Whether there are marks in what is returned. A mark fills an array, and those of the steps
    of a loop that follow: its ends are enough to look at.
    """
    filled = [x.ravel() for x in arrays if eqx.is_inexact_array(x) and x.size]
    ends = [x[:: max(x.size - 1, 1)].astype(jnp.float32) for x in filled]
    return jnp.any(jnp.isnan(jnp.concatenate([*ends, jnp.zeros(1)])))


_SMALL = 4096  # Numbers of an array.


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    small = [x.ravel() for x in arrays if x.size <= _SMALL]  # Better one program than many.
    looked_at = [x for x in arrays if x.size > _SMALL]
    looked_at += [jnp.concatenate(small)] if small else []
    return jnp.all(jnp.array([_is_finite(x) for x in looked_at]))


def _is_finite(array: Array) -> Bool[Array, ""]:
    if array.ndim < 2:
        return jnp.all(jnp.isfinite(array))
    # On the CPU a product with a vector takes a third of the time of looking at each number.
    small = jnp.full(array.shape[-1:], jnp.finfo(array.dtype).tiny ** 0.5, array.dtype)
    return jnp.all(jnp.isfinite(array @ small))
