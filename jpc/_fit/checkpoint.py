import contextlib
import dataclasses
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import equinox as eqx
from jaxtyping import PyTree

from .._given import check_flags, check_number, check_sizes
from .._types import Given
from .check import describe, first_difference
from .devices import Devices
from .folder import check_folder
from .loop import Carry
from .save import AbstractSaver
from .snapshot import Snapshot
from .store import Store


class Checkpoints(eqx.Module):
    """Where [`jpc.fit`][] saves a run, so that it can go on after it was killed.

    A checkpoint has the arrays of the state, the key, the epoch and the step, the history, and
    the configuration. It is written with Orbax, and appears all at once or not at all. A run
    that was killed at any moment and goes on from its newest checkpoint ends with the same bits
    as one that was not (with an iterator, if that gives the same batches in the same epoch). A
    checkpoint that is damaged, or of another run, is refused. Ctrl-C saves one, too.

    **Arguments:**

    - `directory`: a folder for this run alone; all processes must see the same one.
    - `resume`: whether to go on from the newest checkpoint in the folder, if there is one. If
        there is one and this is `False`, that is an error: nothing is ever overwritten.
    - `every`: saves after this many epochs, and after the last one.
    - `seconds`: saves when this much time has passed since, in the middle of an epoch too.
    - `keep`: how many checkpoints to keep, the newest ones.
    - `config`: anything that JSON can hold, to tell this run from others: a checkpoint with
        another one is refused.
    """

    directory: Given[str | os.PathLike]
    resume: Given[bool] = False
    every: Given[int] = 1
    seconds: Given[float] = 600.0
    keep: Given[int] = 3
    config: Any = None

    def __check_init__(self):
        check_folder("directory", self.directory)
        check_sizes(every=self.every, keep=self.keep)
        check_number("seconds", self.seconds, least=0.0)
        check_flags(resume=self.resume)
        try:
            json.dumps(self.config)
        except TypeError as error:
            raise TypeError(f"config must be something that JSON can hold: {error}.") from None


class Saver(AbstractSaver):
    """Saves when [`jpc.Checkpoints`][] says, and what makes this run what it is (`settings`)
    with it. On the main thread it holds back the first Ctrl-C until what is new is saved.
    """

    def __init__(self, given: Checkpoints, settings: dict[str, Any], devices: Devices):
        self._agree = devices.agree
        self._given, self._settings = given, describe(dict(settings, config=given.config))
        self._store = Store(Path(given.directory).absolute(), given.keep)
        self._saved, self._interrupted, self._handler = time.monotonic(), False, None
        self._new, self._number = False, None  # Whether steps were taken since; what was saved.
        self._alone, self._left = devices.processes == 1, "Nothing was saved yet."
        self._at_rest = False
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, self._interrupt)

    def restore(self, snapshot):
        number = self._store.newest()
        if number is None:
            return snapshot
        if not self._given.resume:
            raise FileExistsError(
                f"{self._store.folder} has checkpoints of an earlier run: go on with it, "
                "jpc.Checkpoints(..., resume=True), or choose another folder."
            )
        notes = self._store.read_notes(number, _arrays(snapshot))
        if difference := first_difference(notes["settings"], self._settings):
            raise self._store.refuse(number, f"is of another run: {difference}")
        arrays = self._store.read_arrays(number, _arrays(snapshot), notes)
        self._note_saved(number)
        carry = Carry(arrays["state"], arrays["sums"])
        place = dict(notes["place"], history=tuple(notes["history"]))
        return dataclasses.replace(snapshot, carry=carry, best=arrays["best"], **place)

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
        except KeyboardInterrupt:
            self._save(snapshot)
            raise KeyboardInterrupt(self._left) from None
        finally:
            self._at_rest = False

    def close(self):
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        self._store.close()

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
        notes = dict(settings=self._settings, place=place, history=now.history)
        # The end of an epoch has a number of its own, after that of its last step.
        number = now.total + now.epoch
        if number != self._number:
            self._store.write(number, _arrays(now), notes)
        self._note_saved(number)

    def _note_saved(self, number: int) -> None:
        self._saved, self._new, self._number = time.monotonic(), False, number
        resume = "jpc.Checkpoints(..., resume=True)"
        self._left = f"Saved in {self._store.folder}: go on with {resume}."

    def _interrupt(self, *_: Any) -> None:
        signal.signal(signal.SIGINT, self._handler)  # A second one does not wait.
        if self._at_rest or (self._alone and not self._new):
            raise KeyboardInterrupt(self._left)
        self._interrupted = True


def _arrays(snapshot: Snapshot) -> PyTree:
    return dict(state=snapshot.carry.state, sums=snapshot.carry.sums, best=snapshot.best)
