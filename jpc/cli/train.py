import contextlib
import functools as ft
import time
from typing import Any, Literal

import equinox as eqx
import jax

import jpc

from .._files import write_whole
from .._fit.checkpoint import READ
from .._fit.differ import OtherRunError
from .advice import tell_pace
from .build import load_data, make_keys, make_mesh
from .config import Config, ConfigError
from .diagnose import Diagnosis
from .folder import Record, RunFolder
from .outcome import Outcome, Prediction, observe, predict_numbers
from .own import check_unchanged, keep_data, load_own, settle
from .report import Report, Status
from .setting import Picture, State
from .steps import make_step, make_stop
from .tasks import AbstractTask, make_task
from .text import told
from .toml import as_tables

_PAUSE = 10.0  # Seconds between two reports: to draw them takes time, too.


class Watcher:
    """Keeps the folder of a run up to date: looks at the state after each epoch, which
    [`jpc.fit`][] gives it to `inspect`, and then writes down what `fit` says of the epoch.
    """

    def __init__(self, task: AbstractTask, folder: RunFolder):
        self._task, self._folder = task, folder
        self._diagnosis = Diagnosis(task)
        self._pictures: list[Picture] = []
        self._outcome: Outcome | None = None
        self._predictions: list[Prediction] = []
        self._written = -_PAUSE

    def look(self, **state: Any) -> dict[str, Any]:
        self._pictures = self._task.pictures(state)
        if self._task.setting.config.data.task == "discriminative" and self._is_due():
            self._outcome = observe(self._task, state)
        return self._diagnosis(state)

    def conclude(self, state: State, status: Status) -> None:
        """The last report, with what takes longer."""
        self._pictures, self._outcome = self._task.pictures(state), observe(self._task, state)
        self._predictions = predict_numbers(self._task, state)
        self.report(status)

    def note(self, record: Record) -> None:
        self._folder.append(record)
        if self._is_due():
            self.report("running")

    def _is_due(self) -> bool:
        return time.monotonic() - self._written > _PAUSE

    def report(self, status: Status) -> None:
        config, records = self._task.setting.config, self._folder.read_metrics()
        made = Report(
            records=records,
            status=status,
            epochs=config.training.epochs,
            config=config,
            pictures=self._pictures,
            outcome=self._outcome,
            predictions=self._predictions,
        )
        self._folder.write_report(made.page(), made.drawings())
        if records and status != "running":
            self._plot(records)
        self._written = time.monotonic()

    def _plot(self, records: list[Record]) -> None:
        """At the end: it takes seconds, and the figures of the report are there before."""
        from . import plot  # noqa: PLC0415  (Matplotlib is slow to import)

        config, path = self._task.setting.config, self._folder.path
        x_label = "step" if config.inference.method == "descent" else "time"
        write_whole(path / "accuracy.png", plot.plot_accuracy(records, self._task.headline))
        write_whole(path / "energies.png", plot.plot_energies(records, x_label))
        if config.data.task != "discriminative" and self._pictures:
            write_whole(path / "samples.png", plot.plot_pictures(self._pictures))


def prepare(config: Config, *, progress: bool) -> AbstractTask:
    """Everything that a run needs before it can start."""
    jax.config.update("jax_enable_x64", config.training.precision == "float64")
    make_mesh(config.training.devices)
    if config.data.is_own:
        dataset = load_own(config.data, flatten=config.network.kind == "mlp")
        task = make_task(settle(config, dataset), dataset)
    else:
        task = make_task(config, load_data(config, progress=progress))
    eqx.filter_eval_shape(task.state)  # Refuses a network that cannot be.
    return task


def begin(task: AbstractTask) -> State:
    """The state of a run before it starts. Its arrays one by one would be thirty programs."""
    return eqx.filter_jit(task.state)()


def train(
    task: AbstractTask, folder: RunFolder, *, resume: bool | Literal["anyway"], progress: bool
) -> Record:
    """Trains, and keeps the folder of the run up to date.

    **Arguments:**

    - `task`: what to train.
    - `folder`: that of the run.
    - `resume`: whether to go on with a run that is there; or `"anyway"`, with another one too.
    - `progress`: whether to show how it goes.

    **Returns:**

    The last epoch's entry of the metrics.
    """
    config = task.setting.config
    with told("making the network ...", progress):
        watcher, state = Watcher(task, folder), begin(task)
    examples = len(task.setting.dataset.train[1])
    folder.read_metrics()  # If they are damaged, that is known before training.
    if resume is True:
        check_unchanged(folder, config, task.setting.dataset)
    (folder.write_config if resume else folder.begin)(config)
    keep_data(folder, config, task.setting.dataset)
    try:
        fitted = fit(
            task,
            state,
            folder,
            resume=resume,
            epochs=config.training.epochs,
            progress=progress,
            inspect=watcher.look,
            callbacks=[watcher.note],
            pace=ft.partial(tell_pace, config, examples) if progress else None,
        )
    except OtherRunError as error:
        again = f"jpc train --resume {folder.path} --anyway"
        raise ConfigError(f"{error.found}. Train anew, or go on all the same: {again}.") from None
    except BaseException as error:
        with contextlib.suppress(OSError):  # Of which the first one matters.
            watcher.report("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    with told("writing the report ...", progress):
        watcher.conclude(fitted.state, "finished")
    stop = make_stop(task)
    return fitted.history[-1 if stop is None else stop.best(fitted.history)]


def fit(
    task: AbstractTask, state: State, folder: RunFolder, *, resume: Any, **options: Any
) -> jpc.Fitted:
    """Trains from the beginning, or from where a run got to."""
    config, dataset = task.setting.config, task.setting.dataset
    saved = as_tables(config)
    saved["training"] = dict(saved["training"], epochs=None)
    validation = dataset.validation and make_pair(task, dataset.validation)
    return jpc.fit(
        make_step(task),
        state,
        make_pair(task, dataset.train),
        batch_size=config.training.batch_size,
        key=make_keys(config.training.seed)[2],
        metrics=task.metrics,
        classes=task.setting.classes or None,
        test=make_pair(task, dataset.test),
        validation=validation,
        evaluate=task.evaluate,
        stop=make_stop(task),
        checkpoints=jpc.Checkpoints(folder.checkpoints, resume=resume, keep=2, config=saved),
        mesh=make_mesh(config.training.devices),
        **options,
    )


def make_pair(task: AbstractTask, examples: tuple) -> tuple[Any, Any]:
    """Input and output, in the precision of the run."""
    precision = jax.numpy.result_type(float)
    images, labels = examples
    labels = labels.astype(precision) if labels.dtype.kind == "f" else labels
    return task.pair(images.astype(precision), labels)


def restore(task: AbstractTask, folder: RunFolder) -> State:
    """The state of a run of which at least one epoch is done."""
    try:
        return fit(task, begin(task), folder, resume=READ, epochs=1, progress=False).state
    except OtherRunError as error:
        raise ConfigError(f"{error.found}. Was {folder.config} changed? Change it back.") from None
