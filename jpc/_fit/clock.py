import functools as ft
import threading
import time
from typing import Any

import jax

_COMPILING = "/jax/core/compile/"


class CompileClock:
    """How many seconds went into tracing and compiling, by what JAX says of itself. It reports a
    span when it is over, those within it first.
    """

    def __init__(self):
        self._spans: list[tuple[float, float]] = []
        self._lock = threading.Lock()

    def seconds(self) -> float:
        with self._lock:
            return sum((end - begin for begin, end in self._spans), 0.0)

    def note(self, event: str, duration_secs: float, **_: Any) -> None:
        if event.startswith(_COMPILING):
            self.add(time.perf_counter() - duration_secs, time.perf_counter())

    def add(self, begin: float, end: float) -> None:
        with self._lock:
            while self._spans and self._spans[-1][1] > begin:
                begin = min(begin, self._spans.pop()[0])
            self._spans.append((begin, end))


@ft.cache
def compile_clock() -> CompileClock:
    """The one of this process."""
    clock = CompileClock()
    jax.monitoring.register_event_duration_secs_listener(clock.note)
    return clock
