"""Long work in many parts: how far it is, how long it will take, and how to stop it."""

import contextlib
import datetime
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

import jpc

Job = TypeVar("Job")
Advance: TypeAlias = Callable[[float], None]


def run_jobs(
    jobs: Sequence[Job],
    work: Callable[[Job, Advance], None],
    *,
    cost: Callable[[Job], float],
    describe: Callable[[Job], str],
    size: Callable[[Job], int] = lambda job: 1,
    minutes: float,
    shown: bool,
) -> None:
    """Works on one job after the other, with a line for each when it is done and, on a terminal,
    a bar.

    **Arguments:**

    - `work`: takes a job, and a function to be told which part of it was done.
    - `cost`: about how many seconds a job takes.
    - `describe`, `size`: a job in words, and how many networks it trains.
    - `minutes`: after which no other one is begun.
    - `shown`: whether to show anything.
    """
    times = (TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
    name = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True))
    columns = (TaskProgressColumn(), *times, BarColumn(20), name)
    options: Any = dict(transient=True, expand=True, speed_estimate_period=3600)
    costs = [cost(job) for job in jobs]
    with Progress(*columns, disable=not shown, **options) as bar, interruptible() as check:
        say = lambda text: bar.console.print(text, highlight=False, soft_wrap=True)
        task, begin = bar.add_task("", total=sum(costs)), time.monotonic()
        if shown and jobs:
            count = sum(map(size, jobs))
            say(f"{count} networks to train, about {duration(sum(costs))}")
        for number, (job, own) in enumerate(zip(jobs, costs, strict=True), 1):
            if time.monotonic() - begin > 60 * minutes:
                break

            def advance(part: float, own: float = own) -> None:
                check()
                bar.advance(task, part * own)

            bar.update(task, description=describe(job))
            work(job, advance)
            if shown:
                spent = time.monotonic() - begin
                left = spent * (sum(costs) / sum(costs[:number]) - 1)
                told = f"{duration(spent)}, {duration(left)} left"
                say(f"{number}/{len(jobs)}  {describe(job)}  {told}")


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """To be told to end is an interruption, too; and one that gets lost, since JAX ignores what is
    raised while it tidies up, is raised again by the function that is given.
    """
    asked = False

    def ask(*_: Any) -> NoReturn:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    first = threading.current_thread() is threading.main_thread()  # It alone gets signals.
    signals = [signal.SIGINT, signal.SIGTERM] if first else []
    before = [signal.signal(number, ask) for number in signals]
    try:
        yield check
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def duration(seconds: float) -> str:
    """`40 s`, `5 min`, `2 h`."""
    units = {"h": 3600, "min": 60, "s": 1}
    name = next((name for name, unit in units.items() if seconds >= 2 * unit), "s")
    return f"{seconds / units[name]:.0f} {name}"


def where(products: str | None = None) -> dict[str, str]:
    """On what something was run. `products`: how those of matrices were rounded."""
    return {
        "date": datetime.date.today().isoformat(),
        "device": jax.devices()[0].device_kind,
        "products": products or jnp.result_type(float).name,
        "jax": jax.__version__,
        "jpc": jpc.__version__,
    }
