import contextlib
import dataclasses
import errno
import functools as ft
import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
from jaxtyping import PyTree

from .._claim import InUseError, hold, is_held
from .._given import check_number, check_sizes, show
from .._types import Given
from .check import describe, first_difference
from .devices import Devices
from .differ import OtherRunError, differ_in_identity, differ_in_settings
from .fingerprint import digest_arrays
from .folder import check_folder
from .loop import Carry
from .save import AbstractSaver
from .snapshot import Snapshot
from .store import DamagedError, Store

READ: Any = "read"  # Only to look at a run, perhaps with other data.
_RESUME = (False, True, "anyway", READ)


class Checkpoints(eqx.Module):
    """Where [`jpc.fit`][] saves a run, so that it can continue after it was killed.

    A checkpoint has the arrays of the state, the key, the epoch and the step, the history, and
    the configuration. It is written with Orbax, and appears all at once or not at all. A run
    that was killed at any moment and continues from its newest checkpoint ends with the same
    bits as one that was not. (If the data is an iterator, it must give the same batches in the
    same epoch.) If a checkpoint is damaged, the one before it is used, with a warning. Ctrl-C
    saves a checkpoint, too.

    What determines the result is saved, and compared before a run continues: the program that
    the step is traced to, with its constants; the numbers of the data (of an array of more than
    256 MiB, those of evenly spaced examples; of an iterator, those of its first batch) and of the
    initial state; the test and validation data, and how they are evaluated; the batch size, the
    key and `config`. The number of epochs, the patience of a `stop`, the devices, and everything
    that only watches may change.

    **Arguments:**

    - `directory`: a folder for this run alone; all processes must see the same one.
    - `resume`: whether to continue from the newest checkpoint in the folder, if there is one. If
        there is one and this is `False`, that is an error: nothing is ever overwritten. The
        checkpoint of another run is refused, with an error that names what differs. With
        `"anyway"` it is used all the same.
    - `every`: saves after this many epochs, and after the last one.
    - `seconds`: saves when so much time has passed since the last time, also in the middle of an
        epoch.
    - `keep`: how many checkpoints to keep, the newest ones.
    - `config`: anything that JSON can hold, to tell this run from others.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    state = dict(model=model, optim=optim, opt_state=opt_state)
    options = dict(batch_size=5, key=jr.key(0), progress=False)
    saved = jpc.Checkpoints("runs/1", resume=True)
    jpc.fit(jpc.make_pc_step, state, (x, y), epochs=1, checkpoints=saved, **options)
    ```
    """

    directory: Given[str | os.PathLike]
    resume: Given[bool | Literal["anyway"]] = False
    every: Given[int] = 1
    seconds: Given[float] = 600.0
    keep: Given[int] = 3
    config: Any = None

    def __check_init__(self):
        check_folder("directory", self.directory)
        check_sizes(every=self.every, keep=self.keep)
        if not (isinstance(self.resume, str | int) and self.resume in _RESUME):
            raise ValueError(f"resume must be True, False or 'anyway', got {show(self.resume)}.")
        check_number("seconds", self.seconds, least=0.0)
        try:
            json.dumps(self.config)
        except (TypeError, ValueError) as error:
            raise TypeError(f"config must be something that JSON can hold: {error}.") from None


class Saver(AbstractSaver):
    """Saves when [`jpc.Checkpoints`][] says, and what makes this run what it is with it: the
    `settings`, and the `identity`, which takes a moment to find. On the main thread it holds back
    the first Ctrl-C until what is new is saved.
    """

    def __init__(
        self,
        given: Checkpoints,
        settings: dict[str, Any],
        identity: Callable[[], dict[str, Any]],
        devices: Devices,
    ):
        self._agree, self._identify = devices.agree, identity
        self._given, self._settings = given, describe(dict(settings, config=given.config))
        self._found, self._damaged = [], []  # The numbers of checkpoints.
        self._claim = contextlib.ExitStack()
        self._store = Store(Path(given.directory).absolute(), given.keep)
        self._saved, self._interrupted, self._handler = time.monotonic(), False, None
        self._new, self._number = False, None  # Whether steps were taken since; what was saved.
        self._alone, self._left = devices.processes == 1, "Nothing was saved yet."
        self._at_rest = False
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, self._interrupt)

    def restore(self, snapshot):
        self._found = self._store.numbers()
        if self._found and not self._given.resume:
            raise FileExistsError(
                f"{self._store.folder} has checkpoints of an earlier run: go on with it, "
                "jpc.Checkpoints(..., resume=True), or choose another folder."
            )
        return self._go_on(snapshot) if self._found else snapshot

    def _go_on(self, snapshot: Snapshot) -> Snapshot:
        """From the newest checkpoint that is whole."""
        damaged = []
        for number in self._found:
            try:
                notes = self._store.read_notes(number)
                self._check_state(number, notes["arrays"], describe(_arrays(snapshot)))
                arrays = self._store.read_arrays(number, _arrays(snapshot), notes)
            except DamagedError as error:
                damaged.append(error)
                self._damaged.append(number)
                continue
            for error in damaged:
                where = self._store.folder / str(number)
                warnings.warn(f"{error} Went on from the one before it, {where}.", stacklevel=2)
            self._compare(number, notes, arrays)
            if arrays["best"] is not None and not any(map(_is_best, notes["arrays"])):
                why = "has no best state, as it was saved without stop=. Choose another folder"
                raise self._store.refuse(number, why)
            return self._place(snapshot, number, notes, arrays)
        raise ValueError(
            f"{damaged[0]} No other one is whole: choose another folder, or delete "
            f"{self._store.folder} to begin anew."
        )

    def _check_state(self, number: int, old: dict[str, str], new: dict[str, str]) -> None:
        """Refuses to go on with a state of another shape, whatever was asked for."""
        if difference := _first_difference(old, new, "['state']"):
            why = f"is of another state: {difference}. Choose another folder"
            raise self._store.refuse(number, why)

    def _compare(self, number: int, notes: dict[str, Any], arrays: PyTree) -> None:
        """Refuses to go on with another run, as the first process sees it."""
        if self._given.resume == "anyway":
            return
        differences = differ_in_settings(notes["settings"], self._settings)
        if self._given.resume != READ and "identity" in notes:
            differences += differ_in_identity(notes["identity"], self._identity, not differences)
            differences += self._differ_in_state(notes["identity"], arrays)
        elif self._given.resume != READ:
            warnings.warn(
                f"The checkpoint {self._store.folder / str(number)} is of an earlier version of "
                "jpc, which did not note the step and the data: they are not compared.",
                stacklevel=2,
            )
        if self._agree(bool(differences)):
            said = "; ".join(differences) or "see the first process"
            raise OtherRunError(
                f"The checkpoint {self._store.folder / str(number)} is of another run: {said}"
            )

    def _differ_in_state(self, noted: dict[str, Any], arrays: PyTree) -> list[str]:
        """The state to begin with may be that of the checkpoint as well."""
        given, saved = self._identity["state"], (arrays["state"], arrays["best"])
        if given != noted["state"] and not (
            self._alone and any(given == digest_arrays(x) for x in saved)
        ):
            return ["the state to begin with: other numbers of the same shape"]
        self._identity["state"] = noted["state"]
        return []

    @ft.cached_property
    def _identity(self) -> dict[str, Any]:
        return self._identify()

    def _place(
        self, snapshot: Snapshot, number: int, notes: dict[str, Any], arrays: PyTree
    ) -> Snapshot:
        self._note_saved(number)
        carry = Carry(arrays["state"], arrays["sums"], arrays["method"])
        place = dict(notes["place"], history=tuple(notes["history"]))
        if _first_difference(notes["arrays"], describe(arrays), "['sums']"):
            carry = Carry(arrays["state"], snapshot.carry.sums, arrays["method"])
            place["since"] = place["step"]
        return dataclasses.replace(snapshot, carry=carry, best=arrays["best"], **place)

    def begin(self):
        """Takes the folder, and moves what is damaged out of the way."""
        folder, error = self._store.folder, None
        if jax.process_index() == 0:
            if folder.exists() and not folder.is_dir():
                raise NotADirectoryError(f"Checkpoints need a folder, but {folder} is a file.")
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._claim.enter_context(hold(folder))
                if self._store.numbers() != self._found:
                    raise InUseError(f"Another run has saved in {folder} since: start again.")
                for number in self._damaged:
                    self._store.set_aside(number)
            except InUseError as raised:
                error = raised
        if self._agree(error is not None):
            raise error or InUseError(f"{folder} is in use by another run.")

    def after_chunk(self, snapshot):
        self._new = True
        self._save_if(self._is_late(), snapshot)

    def after_epoch(self, snapshot, last):
        self._new = True
        turn = last or snapshot.epoch % self._given.every == 0
        self._save_if(turn or self._is_late(), snapshot)

    @contextlib.contextmanager
    def resting(self, snapshot):
        self._save_if(False, snapshot)
        self._at_rest = self._alone
        try:
            yield
        except BaseException as error:  # Imports and callbacks make others of an interruption.
            if not (self._interrupted or isinstance(error, KeyboardInterrupt)):
                raise
            self._save(snapshot)
            raise KeyboardInterrupt(self._left) from None
        finally:
            self._at_rest = False

    def close(self):
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        self._store.close()
        self._claim.close()
        with contextlib.suppress(OSError):
            self._store.folder.rmdir()  # If nothing came to be in it.

    def _is_late(self) -> bool:
        return time.monotonic() - self._saved > self._given.seconds

    def _save_if(self, due: bool, snapshot: Snapshot) -> None:
        interrupted = self._agree(self._interrupted)
        if interrupted or self._agree(due):
            self._save(snapshot)
        if interrupted:
            raise KeyboardInterrupt(self._left)

    def _save(self, now: Snapshot) -> None:
        place = dict(epoch=now.epoch, step=now.step, total=now.total)
        place |= dict(since=now.since) if now.since else {}
        notes = dict(settings=self._settings, identity=self._identity, place=place)
        notes |= dict(history=now.history)
        # The end of an epoch has a number of its own, after that of its last step.
        number = now.total + now.epoch
        if number != self._number:
            self._check_folder()
            self._store.write(number, _arrays(now), notes)
        self._note_saved(number)

    def _check_folder(self) -> None:
        """Orbax would make a new one in the place of one that somebody has moved."""
        if jax.process_index() == 0 and not is_held(self._store.folder):
            missing = errno.ENOENT
            raise FileNotFoundError(missing, os.strerror(missing), str(self._store.folder))

    def _note_saved(self, number: int) -> None:
        self._saved, self._new, self._number = time.monotonic(), False, number
        resume = "jpc.Checkpoints(..., resume=True)"
        self._left = f"Saved in {self._store.folder}: go on with {resume}."

    def _interrupt(self, *_: Any) -> None:
        second, self._interrupted = self._interrupted, True  # What is raised may get lost.
        if second or self._at_rest or (self._alone and not self._new):
            raise KeyboardInterrupt(self._left)


def _is_best(name: str) -> bool:
    return name.startswith("['best']")


def _first_difference(old: dict[str, str], new: dict[str, str], part: str) -> str | None:
    of_part = lambda named: {name: x for name, x in named.items() if name.startswith(part)}
    return first_difference(of_part(old), of_part(new))


def _arrays(snapshot: Snapshot) -> PyTree:
    carry = snapshot.carry
    return dict(state=carry.state, sums=carry.sums, best=snapshot.best, method=carry.method)
