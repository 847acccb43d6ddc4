import shlex
from typing import Any

import jax.random as jr

from .._fit import score_state
from .config import ConfigError
from .folder import Record, RunFolder
from .own import check_unchanged
from .predict import prepare_new
from .setting import State
from .tasks import AbstractTask
from .train import make_pair, prepare, restore


def evaluate_run(folder: RunFolder, data: str | None = None) -> dict[str, Any]:
    """The metrics of the test set, or of other data, from the newest checkpoint of a run."""
    config = folder.read_config()
    if not folder.read_metrics():
        raise ConfigError(f"{folder.path} has nothing to evaluate: no epoch of it is done.")
    if data is None:
        task = prepare(config, progress=False)
        check_unchanged(folder, config, task.setting.dataset)
    else:
        task, new = prepare_new(folder, data, targets=True)
        if not new.labelled and config.data.task != "unsupervised":
            again = shlex.join(["jpc", "predict", str(folder.path), data])
            raise ConfigError(f"{data} has no targets to compare with: {again}")
    return dict(run=str(folder.path), **evaluate(task, restore(task, folder)))


def evaluate(task: AbstractTask, state: State) -> Record:
    """What was noted after the last epoch, of any state."""
    setting = task.setting
    return score_state(
        task.evaluate,
        state,
        make_pair(task, setting.dataset.test),
        batch_size=setting.config.training.batch_size,
        key=jr.key(0),  # Nothing is drawn.
        classes=setting.classes,
    )
