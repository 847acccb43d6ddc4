"""What determines the result of a run, as digests that are the same in every process. A run is
gone on with if it is still the same one.
"""

import enum
import hashlib
import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import PyTree

from .devices import untyped

MOST_BYTES = 2**28  # Of an array: of a larger one, evenly spaced rows that are about as many.
_MOST_NUMBERS = 200
_PACKAGES = ("jax", "jaxlib", "equinox", "diffrax", "optax", "optimistix", "lineax")
_PLAIN = (bool, int, float, complex, str, bytes, np.dtype)
_ADDRESS = re.compile(r"0x[0-9a-f]+")
# How a program is called and where it runs is not what it computes.
_IGNORED = {"name", "ctx_mesh", "sharding", "out_sharding", "in_shardings", "out_shardings",
            "in_layouts", "out_layouts", "donated_invars", "keep_unused", "inline",
            "compiler_options_kvs"}  # fmt: skip

Digests = dict[str, Any]


def made_with() -> dict[str, str]:
    """What may make another program of the same code."""
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return versions | {"the device": jax.default_backend()}


def digest_arrays(tree: PyTree) -> Digests:
    """The types and shapes of arrays, and a digest of their bytes."""
    leaves, digest = [untyped(x) for x in jax.tree.leaves(tree)], hashlib.sha256()
    for x in leaves:
        digest.update(_sample(x).data)
    shapes = [f"{x.dtype}{list(x.shape)}" for x in leaves]
    return dict(shapes=", ".join(shapes), sha256=digest.hexdigest())


def _sample(array: Any) -> np.ndarray:
    if array.nbytes > MOST_BYTES:
        rows = max(1, len(array) * MOST_BYTES // array.nbytes)
        array = array[np.linspace(0, len(array) - 1, rows).astype(int)]
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def digest_program(program: ClosedJaxpr) -> Digests:
    """What a program computes: digests of its operations and of the constants in it, and those
    of the constants that are plain numbers, by which a new learning rate can be named.
    """
    walk = _Walk()
    form, values = walk.digest(program.jaxpr, program.consts)
    return dict(form=form, values=values, numbers=sorted(walk.numbers)[:_MOST_NUMBERS])


class _Walk:
    """Goes through a program, and through the programs in it. What it makes of them has no names
    and no addresses, and does not depend on which of them are the same object.
    """

    def __init__(self):
        self.numbers: set[float] = set()
        self._known: dict[int, tuple[str, str]] = {}

    def digest(self, program: Jaxpr, consts: Iterable[Any] = ()) -> tuple[str, str]:
        """Of the operations, and of the constants."""
        if id(program) not in self._known:
            form, values = hashlib.sha256(), hashlib.sha256()
            for line in self._lines(program, values):
                form.update(line.encode())
            self._known[id(program)] = form.hexdigest(), values.hexdigest()
        form, values = self._known[id(program)]
        for scalar in (x for x in consts if np.shape(x) == ()):
            self._count(np.asarray(untyped(scalar)))
        arrays = [digest_arrays(x)["sha256"] for x in consts]
        return form, hashlib.sha256("".join([values, *arrays]).encode()).hexdigest()

    def _lines(self, program: Jaxpr, values: Any) -> Iterator[str]:
        places: dict[Any, int] = {}

        def show(atom: Any) -> str:
            kind = f"{getattr(atom.aval, 'dtype', '')}{getattr(atom.aval, 'shape', '')}"
            if isinstance(atom, Literal):
                return self._note(atom.val, values) + kind
            return f"{places.setdefault(atom, len(places))}:{kind}"

        listed = lambda atoms: " ".join(map(show, atoms))
        yield listed([*program.constvars, *program.invars])
        for eqn in program.eqns:
            params = {k: v for k, v in sorted(eqn.params.items()) if k not in _IGNORED}
            called = f"{eqn.primitive.name}{self._show(params, values)}"
            yield f"\n{listed(eqn.outvars)}={called} {listed(eqn.invars)}"
        yield "\n" + listed(program.outvars)

    def _note(self, constant: Any, values: Any) -> str:
        array = np.asarray(constant)
        values.update(_sample(array).data)
        self._count(array)
        return f"{array.dtype}{array.shape}"

    def _count(self, array: np.ndarray) -> None:
        if array.ndim == 0 and array.dtype.kind in "iuf" and np.isfinite(array):
            self.numbers.add(float(array))

    def _show(self, value: Any, values: Any) -> str:
        """A parameter of an operation."""
        show = lambda x: self._show(x, values)
        if isinstance(value, Jaxpr | ClosedJaxpr):
            return self._enter(value, values)
        if isinstance(value, Mapping):
            return str([f"{name}={show(x)}" for name, x in value.items()])
        if isinstance(value, list | tuple):
            return str([show(x) for x in value])
        if isinstance(value, set | frozenset):
            return str(sorted(map(show, value)))
        if isinstance(value, np.ndarray | jax.Array):
            return self._note(untyped(value), values)
        return _name(value.item() if isinstance(value, np.generic) else value)

    def _enter(self, program: Jaxpr | ClosedJaxpr, values: Any) -> str:
        closed = isinstance(program, ClosedJaxpr)
        inner = (program.jaxpr, program.consts) if closed else (program, ())
        form, inside = self.digest(*inner)
        values.update(inside.encode())
        return form


def _name(value: Any) -> str:
    """What says itself by its name, and anything else by that of its type."""
    if value is None or isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, jax.tree_util.PyTreeDef):
        return _ADDRESS.sub("", str(value))
    named = getattr(value, "__qualname__", type(value).__qualname__)
    return value.name if isinstance(value, enum.Enum) else named
