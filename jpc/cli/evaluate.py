from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .config import ConfigError
from .folder import RunFolder
from .tasks import AbstractTask
from .train import prepare, restore

_AT_ONCE = 100  # Examples.


def evaluate_run(folder: RunFolder) -> dict[str, Any]:
    """The metrics of the test set, from the newest checkpoint of a run."""
    config = folder.read_config()
    if not folder.read_metrics():
        raise ConfigError(f"{folder.path} has nothing to evaluate: no epoch of it is done.")
    task = prepare(config, progress=False)
    state = restore(task, folder)
    means = evaluate(task, state)
    return dict(run=str(folder.path), **{f"test_{k}": float(v) for k, v in means.items()})


@eqx.filter_jit
def _scores(task: AbstractTask, state: Any, examples: Any) -> Any:
    one = lambda example: task.evaluate(**example, **state, key=jax.random.key(0))
    batch_of_one = lambda x: one(jax.tree.map(lambda leaf: leaf[None], x))
    return jax.lax.map(batch_of_one, examples, batch_size=_AT_ONCE)


def evaluate(task: AbstractTask, state: Any) -> dict[str, Any]:
    """Means over the test set, each example by itself, as [`jpc.fit`][] takes them."""
    images, labels = task.setting.dataset.test
    labels = jax.nn.one_hot(labels, task.setting.classes)
    input, output = task.pair(jnp.asarray(images, float), labels)
    scores = _scores(task, dict(state), dict(input=input, output=output))
    return jax.tree.map(jnp.mean, scores)
