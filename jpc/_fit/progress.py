import abc
import importlib.util
import threading
import time
from typing import Any

import jax

Record = dict[str, Any]
_TIMES = ("seconds", "compile_seconds")
# Seconds for which nothing need be said of compiling, of work, and of one more step.
_SHORT, _WHILE, _LONG = 0.3, 1.0, 10.0


class AbstractProgress(abc.ABC):
    """How a run is shown while it goes on."""

    @abc.abstractmethod
    def compile(self, what: str) -> None:
        """Something is compiled now."""

    @abc.abstractmethod
    def work(self, what: str) -> None:
        """Something goes on now that was compiled before, or most of it."""

    @abc.abstractmethod
    def begin(self, step: int) -> None:
        """So many steps were done before."""

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
    def compile(self, what):
        pass

    def work(self, what):
        pass

    def begin(self, step):
        pass

    def advance(self, epoch, step):
        pass

    def end(self, record):
        pass

    def close(self):
        pass


class Lines(AbstractProgress):
    """One line for each epoch, and for what takes long."""

    def __init__(self, epochs: int, steps: int | None):
        self._epochs, self._steps = epochs, steps
        self._written, self._timer = time.monotonic(), threading.Timer(0.0, print)
        self._compiled, self._told = "", -1  # The epoch of which a step was told.

    def compile(self, what):
        if what == self._compiled:
            return
        self._compiled = what
        self._write_after(_SHORT, f"compiling {what} ...")

    def work(self, what):
        self._write_after(_WHILE, f"{what} ...")

    def _write_after(self, seconds: float, line: str) -> None:
        """Unless something else comes first."""
        self._timer.cancel()
        self._timer = threading.Timer(seconds, self._write, [line])
        self._timer.daemon = True
        self._timer.start()

    def begin(self, step):
        pass

    def advance(self, epoch, step):
        self._timer.cancel()
        if time.monotonic() - self._written > (_LONG if epoch == self._told else _WHILE):
            self._told = epoch
            of = "" if self._steps is None else f" of {self._epochs * self._steps}"
            self._write(f"step {step}{of}, epoch {epoch + 1} of {self._epochs} ...")

    def end(self, record):
        self._timer.cancel()
        self._write(describe(record))

    def close(self):
        self._timer.cancel()

    def _write(self, line: str) -> None:
        print(line, flush=True)
        self._written = time.monotonic()


class Bar(AbstractProgress):
    """A live bar for the whole run, and above it a line for each epoch."""

    def __init__(self, epochs: int, steps: int | None):
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        texts = [TextColumn("{task.description}"), TextColumn("{task.fields[speed]}")]
        counts = (BarColumn(), MofNCompleteColumn(), texts[1], TimeRemainingColumn())
        self._epochs, self._epoch = epochs, ""
        self._bar = Progress(SpinnerColumn(), texts[0], *counts, transient=True)
        total = None if steps is None else epochs * steps
        self._task = self._bar.add_task("", total=total, speed="")
        self._bar.start()

    def compile(self, what):
        self._bar.update(self._task, description=f"compiling {what}")

    def work(self, what):
        self._bar.update(self._task, description=f"{self._epoch}, {what}")

    def begin(self, step):
        self._bar.reset(self._task, completed=step)

    def advance(self, epoch, step):
        speed = self._bar.tasks[0].speed
        shown = "" if speed is None else f"{speed:.0f} steps/s"
        self._epoch = f"epoch {epoch + 1}/{self._epochs}"
        self._bar.update(self._task, completed=step, description=self._epoch, speed=shown)

    def end(self, record):
        self._bar.console.print(describe(record), highlight=False)

    def close(self):
        self._bar.stop()


def choose_progress(shown: bool, epochs: int, steps: int | None) -> AbstractProgress:
    """A bar if there is a terminal or a notebook to draw it in and Rich to draw it with, else
    lines. Of several processes only the first one shows anything.
    """
    if not shown or jax.process_index() > 0:
        return Silence()
    try:
        import rich  # noqa: PLC0415
    except ImportError:
        return Lines(epochs, steps)
    return Bar(epochs, steps) if _can_draw(rich.get_console()) else Lines(epochs, steps)


def _can_draw(console: Any) -> bool:
    """In a notebook Rich needs its widgets."""
    widgets = importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal or (console.is_jupyter and widgets)


def describe(record: Record) -> str:
    """`epoch 3  loss 0.123  test_acc 97.1  (2.1 s)`: the numbers of a record, not its lists."""
    plain = {k: v for k, v in record.items() if isinstance(v, float) and k not in _TIMES}
    numbers = "".join(f"  {name} {value:.4g}" for name, value in plain.items())
    return f"epoch {record['epoch']}{numbers}  ({_describe_time(record)})"


def _describe_time(record: Record) -> str:
    """`2.1 s`, or `2.1 s, and 8.0 s to compile` if that took long."""
    compiling = record["compile_seconds"]
    more = f", and {compiling:.1f} s to compile" if compiling > _SHORT else ""
    return f"{record['seconds']:.1f} s{more}"
