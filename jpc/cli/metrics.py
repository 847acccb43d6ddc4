"""What metrics are called, what they mean, and which of them counts."""

import math
from collections.abc import Sequence

from .folder import Record

_NOT_METRICS = ("epoch", "step", "seconds", "compile_seconds")
METRICS = ("test_acc", "test_r2", "test_loss", "loss")  # The first of them that is there counts.
UP = ("acc", "r2")  # More is better.
WORDS = {
    "test_acc": ("test accuracy", "of the test examples whose class the network got right"),
    "test_r2": ("test R²", "of the test targets' variance is explained; 1 is all of it"),
    "test_loss": ("test loss", "mean of the loss over the test examples; less is better"),
    "loss": ("training loss", "mean of the loss over the training examples of an epoch"),
    "converged": ("converged", "share of the training examples whose inference met its tolerance"),
}


def describe_metric(name: str, value: float | None) -> str:
    """`test accuracy 97.5 %`, `test loss 3.1`."""
    return f"{name_metric(name)} {show_metric(name, value)}"


def name_metric(metric: str) -> str:
    return WORDS[metric][0] if metric in WORDS else metric.replace("_", " ")


def show_metric(metric: str, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "not a number"
    return f"{value:.1f} %" if metric.endswith("acc") else f"{value:.4g}"


def headline(records: Sequence[Record]) -> str | None:
    """The metric that says how good a network is."""
    names = scalars(records)
    wanted = [name for name in METRICS if name in names]
    return next(iter([*wanted, *names]), None)


def more_is_better(metric: str) -> bool:
    return metric.endswith(UP)


def most_of(metric: str) -> float:
    """The most that it can be."""
    if metric.endswith("acc"):
        return 100.0
    return 1.0 if metric.endswith(("r2", "converged")) else math.inf


def best_epoch(records: Sequence[Record], metric: str) -> Record | None:
    """The first of the best, by validation data if there are any. How good the best epoch of
    training is would say nothing.
    """
    judge = metric.replace("test_", "val_")
    judge = judge if judge in scalars(records) else metric
    there = [record for record in records if None not in (record.get(judge), record.get(metric))]
    if not there or not metric.startswith("test_"):
        return None
    choose = max if more_is_better(metric) else min
    return choose(there, key=lambda record: record[judge])


def scalars(records: Sequence[Record]) -> list[str]:
    """The metrics that are numbers, in order."""
    names = dict.fromkeys(name for record in records for name in record)
    number = lambda x: x is None or (isinstance(x, int | float) and not isinstance(x, bool))
    plain = [name for name in names if all(number(record.get(name)) for record in records)]
    return [name for name in plain if name not in _NOT_METRICS]
