import contextlib
import functools as ft
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from .._extras import TRAIN
from .check import describe
from .devices import typed, untyped

_FORMAT = 1
_LONGEST = 200  # Of what another library says.


class DamagedError(ValueError):
    """A checkpoint is not what was written."""


class Store:
    """Numbered checkpoints in a folder: the arrays of a tree, and notes that are JSON. Each
    carries the digest of both, and is refused if it does not have it any more.
    """

    def __init__(self, folder: Path, keep: int):
        self.folder, self._keep, self._ocp = folder, keep, _orbax()
        self._managers = contextlib.ExitStack()

    def numbers(self) -> list[int]:
        """Those of all checkpoints, the newest first."""
        entries = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted((int(e.name) for e in entries if e.name.isdigit()), reverse=True)

    def set_aside(self, number: int) -> None:
        """Makes room for a checkpoint in the place of one that is damaged."""
        (self.folder / str(number)).rename(self.folder / f"damaged-{number}-{time.time_ns()}")

    def close(self) -> None:
        self._managers.close()

    @ft.cached_property
    def _reader(self) -> Any:
        """It changes nothing: another process may be writing."""
        return self._open(create=False, enable_async_checkpointing=False)

    @ft.cached_property
    def _writer(self) -> Any:
        """It deletes what was being written when a run was killed."""
        return self._open(
            max_to_keep=self._keep, cleanup_tmp_directories=True, enable_async_checkpointing=False
        )

    def _open(self, **options: Any) -> Any:
        options = self._ocp.CheckpointManagerOptions(**options)
        return self._managers.enter_context(
            contextlib.closing(self._ocp.CheckpointManager(self.folder, options=options))
        )

    def write(self, number: int, tree: PyTree, notes: dict[str, Any]) -> None:
        notes = dict(notes, format=_FORMAT, arrays=describe(tree), sha256=_digest(tree))
        notes["digest"] = _digest_notes(notes)
        args = self._ocp.args
        items = dict(arrays=args.StandardSave(_numbered(tree)), notes=args.JsonSave(notes))
        try:
            with _quiet():
                self._writer.save(number, args=args.Composite(**items), force=True)
        except OSError:
            raise
        except Exception as error:  # Whatever Orbax says when it cannot write.
            where = self.folder / str(number)
            if code := re.search(r"os_error_code='(\d+)'", str(error)):
                raise OSError(int(code[1]), os.strerror(int(code[1])), str(where)) from error
            why = f"The checkpoint {where} could not be written: {_first(error)}."
            raise OSError(why) from error

    def read_notes(self, number: int) -> dict[str, Any]:
        """What was noted; `arrays` are their types and shapes, by name."""
        notes = self._read(number, "notes", self._ocp.args.JsonRestore())
        if not (isinstance(notes, dict) and "digest" in notes):
            raise self.refuse(number, "was not written by jpc.fit")
        if notes["digest"] != _digest_notes(notes):
            raise self._damaged(number, "its notes have another digest")
        if notes["format"] != _FORMAT:
            raise self.refuse(number, "was written by another version of jpc.fit")
        return notes

    def read_arrays(self, number: int, tree: PyTree, notes: dict[str, Any]) -> PyTree:
        """A tree like this one, with the arrays that were written: those of the same name, type
        and shape. All others stay as they are.
        """
        ours = dict(zip(describe(tree), jax.tree.leaves(tree), strict=True))
        here, some = describe(tree), next(iter(ours.values()))
        kept = {name for name, kind in notes["arrays"].items() if here.get(name) == kind}
        likes = [
            ours[name] if name in kept else _zeros(kind, some)
            for name, kind in notes["arrays"].items()
        ]
        shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
        numbered = jax.tree.map(shape, _numbered(likes))
        read = self._read(number, "arrays", self._ocp.args.StandardRestore(numbered))
        own = [_own(read.get(str(i), untyped(x)), x) for i, x in enumerate(likes)]
        own = list(map(typed, own, likes))
        if _digest(own) != notes["sha256"]:
            raise self._damaged(number, "its arrays have another digest")
        named = dict(zip(notes["arrays"], own, strict=True))
        found = [named[name] if name in kept else x for name, x in ours.items()]
        return jax.tree.unflatten(jax.tree.structure(tree), found)

    def refuse(self, number: int, why: str) -> ValueError:
        return ValueError(f"The checkpoint {self.folder / str(number)} {why}.")

    def _damaged(self, number: int, why: Any) -> DamagedError:
        where = self.folder / str(number)
        return DamagedError(f"The checkpoint {where} is damaged ({_first(why)}).")

    def _read(self, number: int, name: str, arg: Any) -> Any:
        try:
            args = self._ocp.args.Composite(**{name: arg})
            with _quiet():
                return self._reader.restore(number, args=args)[name]
        except Exception as error:  # Whatever Orbax finds wrong with its files.
            why = f"its {name} cannot be read: {error}"
            raise self._damaged(number, why) from error


def _first(said: Any) -> str:
    """The first words of a long speech."""
    return str(said).partition("\n")[0].partition(" [")[0][:_LONGEST]


def _orbax() -> Any:
    try:
        import orbax.checkpoint  # noqa: PLC0415
    except ImportError:
        raise ImportError(f"Checkpoints need Orbax: {TRAIN}.") from None
    logging.getLogger("absl").addFilter(_is_news)
    return orbax.checkpoint


def _is_news(record: logging.LogRecord) -> bool:
    """Not what a thread of Orbax says, perhaps later, of an error that is raised as well."""
    return "_SignalingThread.run() raised" not in str(record.msg)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What Orbax logs of an error is in what it raises, too."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _zeros(kind: str, some: Array) -> Array:
    """For an array that is read and not used: of this type and shape, where some other one is."""
    dtype, _, shape = kind.partition("[")
    zeros = np.zeros(json.loads(f"[{shape}"), jnp.dtype(dtype))
    if not isinstance(some.sharding, NamedSharding):
        return jnp.asarray(zeros)
    everywhere = NamedSharding(some.sharding.mesh, PartitionSpec())
    return jax.make_array_from_callback(zeros.shape, everywhere, zeros.__getitem__)


def _own(array: Array, like: Array) -> Array:
    """A copy, which can be donated, and which may move between devices if `like` may: else what
    was compiled for the one would be compiled again for the other.
    """
    return jnp.copy(array) if like.committed else jnp.array(np.asarray(array))


def _numbered(tree: PyTree) -> dict[str, Array]:
    """The leaves by their place, without keys (Orbax has its own idea of them) and what is
    empty (it has none).
    """
    leaves = map(untyped, jax.tree.leaves(tree))
    return {str(i): leaf for i, leaf in enumerate(leaves) if leaf.size}


def _digest_notes(notes: dict[str, Any]) -> str:
    noted = {name: note for name, note in notes.items() if name != "digest"}
    return hashlib.sha256(json.dumps(noted, sort_keys=True).encode()).hexdigest()


def _digest(tree: PyTree) -> str:
    """SHA-256 of the bytes of all arrays."""
    digest = hashlib.sha256()
    for array in map(untyped, jax.tree.leaves(tree)):
        whole = array.is_fully_addressable or array.is_fully_replicated
        here = array if whole else multihost_utils.process_allgather(array, tiled=True)
        digest.update(np.asarray(here).tobytes())
    return digest.hexdigest()
