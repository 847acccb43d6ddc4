import abc
import contextlib
from typing import ClassVar

from .snapshot import Snapshot


class AbstractSaver(abc.ABC):
    """What keeps a run safe, if it `saves` anything."""

    saves: ClassVar[bool] = True

    @abc.abstractmethod
    def restore(self, snapshot: Snapshot) -> Snapshot:
        """Where an earlier run got to, or where this one begins."""

    @abc.abstractmethod
    def begin(self) -> None:
        """Before the first step."""

    @abc.abstractmethod
    def after_chunk(self, snapshot: Snapshot) -> None:
        """In the middle of an epoch."""

    @abc.abstractmethod
    def after_epoch(self, snapshot: Snapshot, last: bool) -> None:
        """At the end of an epoch."""

    @abc.abstractmethod
    def resting(self, snapshot: Snapshot) -> contextlib.AbstractContextManager:
        """While no step is taken."""

    @abc.abstractmethod
    def close(self) -> None:
        """At the end of the run, however it ended."""


class NoSaver(AbstractSaver):
    saves = False

    def restore(self, snapshot):
        return snapshot

    def begin(self):
        pass

    def after_chunk(self, snapshot):
        pass

    def after_epoch(self, snapshot, last):
        pass

    def resting(self, snapshot):
        return contextlib.nullcontext()

    def close(self):
        pass
