import abc
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jax.extend.core import ClosedJaxpr
from jaxtyping import PRNGKeyArray, PyTree

from .._checks import REMEDY, in_words
from .._given import is_real, show
from .clock import compile_clock
from .data import AbstractData
from .devices import copy
from .fingerprint import Digests, digest_program
from .loop import Carry, Recipe, finite, keep, zeros
from .progress import AbstractProgress, Record
from .save import AbstractSaver
from .snapshot import Snapshot
from .stop import EarlyStopping

CHUNK_SECONDS, TELL_SECONDS = 0.5, 5.0
FIRST = "the training step"  # What is compiled first.


class Pace:
    """How many steps take about half a second, found on the way. After some seconds of them it
    tells how many one takes.
    """

    def __init__(self, tell: Callable[[float], Any] | None = None):
        self.steps, self._tell, self._timed = 1, tell, None

    def learn(self, steps: int, seconds: float) -> None:
        if steps:
            self.steps = max(1, min(int(steps * CHUNK_SECONDS / seconds), 10 * self.steps))
        if self._tell is not None:
            self._time(steps, seconds, self._tell)

    def _time(self, steps: int, seconds: float, tell: Callable[[float], Any]) -> None:
        """Leaves out the first ones, which were compiled."""
        taken, passed = self._timed or (0, 0.0)
        self._timed = (0, 0.0) if self._timed is None else (taken + steps, passed + seconds)
        if self._timed[1] > TELL_SECONDS:
            self._tell = None
            tell(self._timed[1] / self._timed[0])


class Stopwatch:
    """The seconds since it was made, and those of them that went into compiling."""

    def __init__(self):
        self._began, self._compiled = time.perf_counter(), compile_clock().seconds()

    def read(self) -> dict[str, float]:
        compiling = compile_clock().seconds() - self._compiled
        seconds = time.perf_counter() - self._began - compiling
        return dict(seconds=seconds, compile_seconds=compiling)


class AbstractTest(abc.ABC):
    """What is said of a state after an epoch; `names` are those of the plain numbers in it."""

    names: tuple[str, ...] = ()

    @abc.abstractmethod
    def __call__(self, state: PyTree, key: PRNGKeyArray) -> dict[str, PyTree]:
        """Metrics by name."""

    @abc.abstractmethod
    def fingerprint(self) -> dict[str, Digests]:
        """What tells this test from others."""


class NoTest(AbstractTest):
    def __call__(self, state, key):
        return {}

    def fingerprint(self):
        return {}


@dataclasses.dataclass(frozen=True)
class Test(AbstractTest):
    """The means of metrics over all examples of a test set."""

    data: AbstractData
    recipe: Recipe
    program: ClosedJaxpr
    names: tuple[str, ...]

    def __call__(self, state, key):
        sums, count = self.data.score(self.recipe, state, key)
        if any(np.isnan(x).any() for x in jax.tree.leaves(sums)):
            again = lambda: self.data.score(_checked(self.recipe), state, key)
            in_words(lambda: jax.block_until_ready(again()))
        means = jax.tree.map(lambda x: x / count, sums)
        return {f"test_{name}": value for name, value in means.items()}

    def fingerprint(self):
        return dict(test=self.data.fingerprint(), evaluate=digest_program(self.program))


@dataclasses.dataclass(frozen=True)
class Run:
    """The part of training that is on the host: epochs, and chunks of epochs. Where a chunk
    ends depends on a clock, and nothing of the result depends on where it ends.
    """

    data: AbstractData
    recipe: Recipe
    keys: Sequence[PRNGKeyArray]
    test: AbstractTest
    inspect: Callable[..., Mapping[str, Any]]
    stop: EarlyStopping | None
    callbacks: Sequence[Callable[[Record], Any]]
    saver: AbstractSaver
    progress: AbstractProgress
    pace: Pace = dataclasses.field(default_factory=Pace)
    compiled: set[str] = dataclasses.field(default_factory=set)

    def __call__(self, snapshot: Snapshot, epochs: int) -> Snapshot:
        over = self._is_over(snapshot, epochs)
        if not over:
            self.saver.begin()
        while not over:
            watch = Stopwatch()
            snapshot = self._train(snapshot)
            with self.saver.resting(snapshot):
                snapshot = self._conclude(snapshot, watch)
            over = self._is_over(snapshot, epochs)
            self.progress.end(dict(snapshot.history[-1]))
            if self.saver.saves:
                self.progress.work("saving")
            for callback in self.callbacks:
                callback(dict(snapshot.history[-1]))
            self.saver.after_epoch(snapshot, over)
        return snapshot

    def _is_over(self, snapshot: Snapshot, epochs: int) -> bool:
        stopped = self.stop is not None and self.stop(snapshot.history)
        return stopped or snapshot.epoch >= epochs

    def _train(self, snapshot: Snapshot) -> Snapshot:
        """The rest of an epoch."""
        order, key, _ = self._keys(snapshot.epoch)
        opened = self.data.open(order, snapshot.epoch, snapshot.step)
        snapshot, over = self._chunk(snapshot, opened, key)
        while not over:
            self.saver.after_chunk(snapshot)
            snapshot, over = self._chunk(snapshot, opened, key)
        return snapshot

    def _chunk(self, now: Snapshot, opened: Any, key: PRNGKeyArray) -> tuple[Snapshot, bool]:
        began, asked = time.perf_counter(), now.step + self.recipe.devices.agree(self.pace.steps)
        bounds, kept = (now.step, asked), keep(now.carry)
        self._compile(FIRST)
        carry, reached = self.data.advance(self.recipe, opened, key, bounds, now.carry)
        taken = reached - now.step
        good = np.asarray(finite(carry.state))
        if not good.all():
            self._explain(now, kept, bounds)
            raise not_finite(carry.state, good, now)
        self.pace.learn(taken, time.perf_counter() - began)
        new = dict(carry=carry, step=reached, total=now.total + taken)
        self.progress.advance(now.epoch, now.total + taken)
        return dataclasses.replace(now, **new), reached < asked or reached == self.data.steps

    def _explain(self, now: Snapshot, kept: Carry | None, bounds: tuple[int, int]) -> None:
        """Takes the same steps again, in a program that raises where a check fails."""
        if kept is None:
            return
        self._compile("what says which number was wrong")
        order, key, _ = self._keys(now.epoch)
        opened = self.data.open(order, now.epoch, now.step)
        again = lambda: self.data.advance(_checked(self.recipe), opened, key, bounds, kept)
        in_words(lambda: jax.block_until_ready(again()[0]))

    def _compile(self, what: str) -> None:
        """Says so, the first time."""
        if what not in self.compiled:
            self.compiled.add(what)
            self.progress.compile(what)

    def _work(self, what: str) -> None:
        """Says that it is compiled, the first time, and later that it goes on."""
        known = what in self.compiled
        self._compile(what)
        if known:
            self.progress.work(what)

    def _conclude(self, now: Snapshot, watch: Stopwatch) -> Snapshot:
        """The end of an epoch: what is said of it, and sums of nothing for the next one."""
        state, sums = now.carry.state, now.carry.sums
        if not now.step:
            raise ValueError("The iterator gave no batch of batch_size examples in this epoch.")
        counted = now.step - now.since
        metrics = jax.tree.map(lambda x: x / counted, sums) if counted else {}
        _check_loss(metrics, now.epoch)
        self._work("the test")
        metrics |= self.test(state, self._keys(now.epoch)[2])
        self._work("the diagnosis")
        seen = self.inspect(**eqx.combine(state, self.recipe.rest))
        _check_seen(seen, metrics)
        metrics = plain(metrics | dict(seen))
        record = dict(epoch=now.epoch + 1, step=now.total, **watch.read(), **metrics)
        history = (*now.history, record)
        best = now.best
        if self.stop is not None and self.stop.best(history) == now.epoch:
            best = copy(state)
        carry = Carry(state, self.recipe.devices.put(zeros(sums)), now.carry.method)
        return Snapshot(carry, best, now.epoch + 1, 0, now.total, history)

    def _keys(self, epoch: int) -> tuple[PRNGKeyArray, ...]:
        """Those of the order of an epoch, of its steps, and of the test after it."""
        put = self.recipe.devices.put
        return put(_fold_in(tuple(self.keys), np.asarray(epoch)))


@jax.jit
def _fold_in(keys: tuple[PRNGKeyArray, ...], number: Any) -> tuple[PRNGKeyArray, ...]:
    return tuple(jr.fold_in(key, number) for key in keys)


def _check_seen(seen: Any, metrics: Mapping[str, Any]) -> None:
    """That `inspect` returned numbers by names of their own."""
    if not isinstance(seen, Mapping):
        raise TypeError(f"inspect must return a dictionary, got a {type(seen).__name__}.")
    for name, value in seen.items():
        if name in metrics or not isinstance(name, str):
            raise ValueError(
                f"inspect returned {name!r}: give it a name of its own, other than those of the "
                f"step and the test, {', '.join(metrics)}."
            )
        if not all(is_real(x) or isinstance(x, _FLAGS) for x in jax.tree.leaves(value)):
            raise TypeError(f"inspect must return arrays and numbers, got {name}={show(value)}.")


_FLAGS = bool | np.bool_ | jax.Array | np.ndarray  # Of arrays those of flags, or keys.
_COSTS = ("loss", "losses", "energy", "energies")  # There is nothing to descend in a NaN.


def _check_loss(metrics: dict[str, PyTree], epoch: int) -> None:
    for name in (name for name in _COSTS if name in metrics):
        if not all(np.isfinite(x).all() for x in jax.tree.leaves(metrics[name])):
            raise RuntimeError(
                f"{name} is not finite (NaN or infinity) in epoch {epoch + 1}. {REMEDY}"
            )


def not_finite(state: PyTree, good: np.ndarray, now: Snapshot) -> RuntimeError:
    """Numbers to go on with are none."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    name = jax.tree_util.keystr(paths[int(np.argmin(good))])
    return RuntimeError(
        f"state{name} is not finite (NaN or infinity), since some step after step "
        f"{now.total} of training. {REMEDY} Or inference failed; called by itself, the step "
        "says which."
    )


def _checked(recipe: Recipe) -> Recipe:
    return dataclasses.replace(recipe, checked=True)


def plain(tree: PyTree) -> Any:
    """Arrays as numbers and lists of numbers, and tuples as lists."""
    if isinstance(tree, dict):
        return {name: plain(entry) for name, entry in tree.items()}
    if isinstance(tree, tuple | list):
        return [plain(entry) for entry in tree]
    return np.asarray(tree).tolist()
