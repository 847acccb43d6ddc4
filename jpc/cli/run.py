"""A run as an object."""

import contextlib
import functools as ft
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from jpc.data import Dataset

from .build import load_data
from .config import Config, ConfigError
from .folder import Record, RunFolder
from .metrics import describe_metric, headline
from .own import check_unchanged, load_own
from .report import describe_method
from .setting import State
from .tasks import AbstractTask, make_task
from .train import restore


class Run:
    """What [`jpc.load_run`][] returns."""

    def __init__(self, path: Path):
        self.path, self._folder = path, RunFolder(path)
        if not (self._folder.config.is_file() or self._folder.metrics.is_file()):
            raise FileNotFoundError(
                f"{path} is not the folder of a run: it has neither config.toml nor metrics.jsonl."
            )
        self.history: list[Record] = self._folder.read_metrics()

    @ft.cached_property
    def config(self) -> Config:
        if not self._folder.config.is_file():
            raise ValueError(
                f"{self.path} was written by jpc.fit(report=...), which knows the history only: "
                "the model is in the checkpoints that you gave to it."
            )
        return self._folder.read_config()

    @ft.cached_property
    def data(self) -> Dataset:
        dataset = self._task.setting.dataset
        if self._folder.data.is_file():
            check_unchanged(self._folder, self.config, dataset)
        return dataset

    @ft.cached_property
    def state(self) -> State:
        task, folder = self._task, self._folder.checkpoints
        if not (folder.is_dir() and any(folder.iterdir())):
            raise FileNotFoundError(f"{self.path} has no checkpoint: no epoch of it was saved.")
        with self._precision():
            return restore(task, self._folder)

    @property
    def model(self) -> Any:
        return self.state["generator" if "generator" in self.state else "model"]

    @property
    def skip_model(self) -> Any:
        return self.state.get("skip_model")

    @ft.cached_property
    def _task(self) -> AbstractTask:
        training, task = self.config.training, self.config.data.task
        known = dict(task=task, epochs=training.epochs, batch_size=training.batch_size)
        if missing := [name for name, value in known.items() if not value]:
            raise ConfigError(
                f"{self._folder.config} does not say the {missing[0]}, as that of a run does."
            )
        with self._precision():
            return make_task(self.config, self._load())

    def _load(self) -> Dataset:
        if self.config.data.is_own:
            return load_own(self.config.data, flatten=self.config.network.kind == "mlp")
        return load_data(self.config, progress=False)

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        """That of the run, for a while."""
        before = jax.config.read("jax_enable_x64")
        double = self.config.training.precision == "float64"
        if double and not before:
            remedy = "jax.config.update('jax_enable_x64', True)"
            raise ValueError(f"{self.path} is a run in float64: {remedy} first.")
        jax.config.update("jax_enable_x64", double)
        try:
            yield
        finally:
            jax.config.update("jax_enable_x64", before)

    def __repr__(self) -> str:
        done, of, parts = self.history[-1]["epoch"] if self.history else 0, "", []
        if self._folder.config.is_file():
            config = self.config
            of = f" of {config.training.epochs}"
            parts = [config.data.name, config.data.task, describe_method(config)]
        parts.append(f"epoch {done}{of}")
        if metric := headline(self.history):
            parts.append(describe_metric(metric, self.history[-1].get(metric)))
        return f"Run({str(self.path)!r}: {', '.join(parts)})"
