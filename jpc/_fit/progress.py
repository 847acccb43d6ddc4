import abc
from typing import Any

import jax

Record = dict[str, Any]


class AbstractProgress(abc.ABC):
    """How a run is shown while it goes on."""

    @abc.abstractmethod
    def advance(self, epoch: int, step: int) -> None:
        """So many epochs are done, and steps in all."""

    @abc.abstractmethod
    def end(self, record: Record) -> None:
        """An epoch is over."""

    @abc.abstractmethod
    def close(self) -> None:
        """The run is over."""


class Silence(AbstractProgress):
    def advance(self, epoch, step):
        pass

    def end(self, record):
        pass

    def close(self):
        pass


class Lines(AbstractProgress):
    """One line for each epoch."""

    def advance(self, epoch, step):
        pass

    def end(self, record):
        print(describe(record), flush=True)

    def close(self):
        pass


class Bar(AbstractProgress):
    """A live bar for the whole run, and above it a line for each epoch."""

    def __init__(self, epochs: int, steps: int | None, done: int):
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        texts = [TextColumn("{task.description}"), TextColumn("{task.fields[speed]}")]
        columns = (texts[0], BarColumn(), MofNCompleteColumn(), texts[1], TimeRemainingColumn())
        self._epochs = epochs
        self._bar = Progress(*columns, transient=True)
        total = None if steps is None else epochs * steps
        self._task = self._bar.add_task("compiling", total=total, completed=done, speed="")
        self._bar.start()

    def advance(self, epoch, step):
        speed = self._bar.tasks[0].speed
        shown = "" if speed is None else f"{speed:.0f} steps/s"
        description = f"epoch {epoch + 1}/{self._epochs}"
        self._bar.update(self._task, completed=step, description=description, speed=shown)

    def end(self, record):
        self._bar.console.print(describe(record), highlight=False)

    def close(self):
        self._bar.stop()


def choose_progress(shown: bool, epochs: int, steps: int | None, done: int) -> AbstractProgress:
    """A bar if there is a terminal to draw it in and Rich to draw it with, else lines. Of
    several processes only the first one shows anything.
    """
    if not shown or jax.process_index() > 0:
        return Silence()
    try:
        import rich  # noqa: PLC0415
    except ImportError:
        return Lines()
    return Bar(epochs, steps, done) if rich.get_console().is_terminal else Lines()


def describe(record: Record) -> str:
    """`epoch 3  loss 0.123  test_acc 97.1  (2.1 s)`: the numbers of a record, not its lists."""
    plain = {k: v for k, v in record.items() if isinstance(v, float) and k != "seconds"}
    numbers = "".join(f"  {name} {value:.4g}" for name, value in plain.items())
    return f"epoch {record['epoch']}{numbers}  ({record['seconds']:.1f} s)"
