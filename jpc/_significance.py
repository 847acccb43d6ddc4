"""Whether one group of numbers is better than another, in words."""

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

LEVEL = 0.05


class Sample(NamedTuple):
    """What came out of the runs of a group, and the name of the group."""

    name: str
    values: Sequence[float]

    def mean(self) -> float:
        return float(np.mean(self.values)) if len(self.values) else math.nan

    def deviation(self) -> float:
        """Of the runs, not of their mean: the root of the unbiased variance."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else math.nan

    def show(self, unit: str) -> str:
        spread = "" if math.isnan(self.deviation()) else f" ± {self.deviation():.2g}"
        return f"{self.mean():.4g}{spread}{unit}"


def welch(one: Sample, other: Sample) -> float:
    """The probability of a difference of means as large as this one, or larger, between groups
    without any (Welch's t-test, two-sided); not a number if that cannot be told.
    """
    from scipy.stats import ttest_ind  # noqa: PLC0415

    if min(len(one.values), len(other.values)) < 2:
        return math.nan
    if one.deviation() == other.deviation() == 0:
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Of values that are nearly the same.
        found: Any = ttest_ind(one.values, other.values, equal_var=False)
    return float(found.pvalue)


def holm(chances: Sequence[float]) -> list[float]:
    """Corrected for there being several of them: the smallest times their number, the next one
    times one fewer, and so on, and never less than the one before.
    """
    told = sorted((i for i, p in enumerate(chances) if not math.isnan(p)), key=chances.__getitem__)
    found, least = list(chances), 0.0
    for rank, i in enumerate(told):
        least = max(least, min(1.0, (len(told) - rank) * chances[i]))
        found[i] = least
    return found


def judge(samples: Sequence[Sample], *, more_is_better: bool, unit: str) -> list[str]:
    """A sentence for each group but the best one, beside that."""
    order = sorted(
        (sample for sample in samples if len(sample.values)),
        key=lambda sample: -sample.mean() if more_is_better else sample.mean(),
    )
    pairs = list(itertools.combinations(order, 2))  # The best one was not known before.
    chances = holm([welch(*pair) for pair in pairs])
    test = "Welch's t-test"
    test += f", Holm's correction for {len(pairs)} pairs" if len(pairs) > 1 else ""
    return [
        _sentence(best, other, chance, unit, test)
        for (best, other), chance in zip(pairs, chances, strict=True)
        if best is order[0]
    ]


def _sentence(best: Sample, other: Sample, chance: float, unit: str, test: str) -> str:
    counts = f"{len(best.values)} and {len(other.values)} runs"
    counts = "one run each" if counts == "1 and 1 runs" else counts
    against = f"{best.show(unit)} against {other.show(unit)} ({counts})"
    if min(len(best.values), len(other.values)) < 2:
        return (
            f"{best.name} against {other.name}: {against}. One run does not tell a difference "
            "from chance: repeat both with other seeds."
        )
    if math.isnan(chance):
        same = best.mean() == other.mean()
        told = "they are the same" if same else "the same in every run, so there is no test"
        return f"{best.name} against {other.name}: {against}; {told}."
    rare = (
        f"chance alone makes a difference this large {_often(chance)} ({test}, p = {chance:.2g})"
    )
    if chance < LEVEL:
        return f"{best.name} is better than {other.name}: {against}; {rare}."
    return (
        f"No difference can be told between {best.name} and {other.name}: {against}; {rare}. "
        "More seeds may tell."
    )


def _often(chance: float) -> str:
    if chance < 1e-3:
        return "less than once in 1000 times"
    return f"in {100 * chance:.2g} % of such comparisons"
