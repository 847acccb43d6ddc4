"""What training does besides the step of a task: it augments images, and it stops early."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray

import jpc
import jpc.data
from jpc.data import Dataset

from .rules import FORWARD
from .tasks import AbstractTask


def make_stop(task: AbstractTask) -> jpc.EarlyStopping | None:
    """When to give up: by the validation set."""
    patience = task.setting.config.training.patience
    metric = task.headline.replace("test_", "val_")
    if patience is None:
        return None
    return jpc.EarlyStopping(metric, patience, minimise=metric.endswith("loss"))


def make_step(task: AbstractTask) -> Callable[..., dict[str, Any]]:
    """The step of a task, on images that are augmented if they are to be."""
    config, dataset = task.setting.config, task.setting.dataset
    if config.data.augment == "none":
        return task.step
    side = "input" if config.data.task in FORWARD else "output"
    flip = config.data.augment == "flip"

    def step(*, key: PRNGKeyArray, **given: Any) -> dict[str, Any]:
        key, own = jr.split(key)
        given[side] = augment(own, given[side], dataset, flip=flip)
        return task.step(key=key, **given)

    return step


def augment(key: PRNGKeyArray, images: Array, dataset: Dataset, *, flip: bool) -> Array:
    """Images, flat or not, shifted by up to an eighth of their side; black comes in from there."""
    pad = math.ceil(min(dataset.shape[1:]) / 8)
    black = jnp.asarray(-dataset.mean / dataset.std, images.dtype)[None, :, None, None]
    whole = images.reshape(-1, *dataset.shape) - black
    return (jpc.data.augment(key, whole, flip=flip, pad=pad) + black).reshape(images.shape)
