import csv
import io
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .config import ConfigError
from .folder import RunFolder
from .own import New, read_new
from .tasks import AbstractTask, make_task
from .train import restore

_AT_ONCE = 1024


def prepare_new(folder: RunFolder, file: str, *, targets: bool) -> tuple[AbstractTask, New]:
    """The task of a run, with new examples to test with."""
    config = folder.read_config()
    jax.config.update("jax_enable_x64", config.training.precision == "float64")
    new = read_new(folder, config, file, targets=targets)
    return make_task(config, new.dataset), new


def predict_run(folder: RunFolder, file: str) -> list[dict[str, Any]]:
    """What a run says of the examples of a file: the name of the class, and its probability if
    the loss is that of one; numbers in the units of the training data; or the causes that are
    inferred without supervision.
    """
    config = folder.read_config()
    if not folder.read_metrics():
        raise ConfigError(f"{folder.path} cannot predict yet: no epoch of it is done.")
    task, new = prepare_new(folder, file, targets=False)
    outputs = _outputs(task, restore(task, folder), new.dataset.test[0])
    schema, sure = new.dataset.schema, config.energy.loss == "ce"
    if config.data.task == "unsupervised":
        rows = [{f"cause {i + 1}": x for i, x in enumerate(row)} for row in outputs.tolist()]
    elif schema.classes:
        chances = np.max(jax.nn.softmax(outputs), axis=1)
        rows = [
            {"class": schema.classes[i]} | ({"probability": float(chance)} if sure else {})
            for i, chance in zip(np.argmax(outputs, axis=1), chances, strict=True)
        ]
    else:
        rows = [
            dict(zip(schema.targets, row, strict=True)) for row in schema.decode(outputs).tolist()
        ]
    return [{"example": name} | row for name, row in zip(new.names, rows, strict=True)]


def _outputs(task: AbstractTask, state: Any, inputs: np.ndarray) -> np.ndarray:
    """Batch by batch, all of one size, so that it is compiled once."""
    count = len(inputs)
    size = min(_AT_ONCE, count)
    rows = np.minimum(np.arange(-(-count // size) * size), count - 1).reshape(-1, size)
    made = [np.asarray(task.predict(state, jnp.asarray(inputs[i], float))) for i in rows]
    return np.concatenate(made)[:count]


def check_output(out: Path | None) -> None:
    """Refuses to write predictions over anything but predictions."""
    if out is None or not out.exists():
        return
    if not out.is_file() or not out.read_bytes().startswith(b"example,"):
        raise ConfigError(f"--out {out} is there, and not predictions: name another file.")


def write_csv(rows: list[dict[str, Any]]) -> str:
    """With six digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    show = lambda value: f"{value:.6g}" if isinstance(value, float) else value
    writer.writerows({key: show(value) for key, value in row.items()} for row in rows)
    return text.getvalue()
