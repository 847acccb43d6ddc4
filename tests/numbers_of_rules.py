"""As `numbers_of_pages.py`, for learning rules and deep networks."""

import statistics
from collections.abc import Iterator
from typing import Any

from numbers_of_pages import Row, digits, where

STRENGTHS = (0.001, 0.01, 0.1, 1, 10)
PLAIN_AND_BACKPROP: tuple[tuple[Any, ...], ...] = (("plain", 0.1), ("backprop",))


def _last(rows: list[Row], network: str, rule: str, strength: float | None = None) -> Row:
    return where(rows, network=network, rule=rule, strength=strength)[-1]


def _accuracy(*which: Any) -> float:
    """Of 10,000 images: it has two decimals."""
    return round(_last(*which)["accuracy"], 2)


def sensitive_networks(rows: list[Row], deep: list[Row]) -> Iterator[float]:
    network = "vgg5"
    yield from (_accuracy(rows, network, "plain", p) for p in (0.001, 0.1, 1, 10))
    yield _last(rows, network, "plain", 0.001)["mean_sensitivity"]
    yield digits(_last(rows, network, "plain", 1)["mean_sensitivity"], 2)
    yield from (_accuracy(rows, network, "negative", 1), _accuracy(rows, network, "backprop"))
    centred = [_accuracy(rows, network, "centred", p) for p in STRENGTHS]
    yield from (min(centred[:4]), max(centred[:4]), centred[4])
    yield from (_last(rows, network, "centred", p)["angle"] for p in (1, 10))
    network = "vgg5-weightnorm"
    yield _accuracy(rows, network, "backprop")
    yield from (_accuracy(rows, network, "plain", p) for p in STRENGTHS)
    both = [_last(rows, network, *which)["mean_sensitivity"] for which in PLAIN_AND_BACKPROP]
    yield from (digits(both[0] / both[1], 1), *both)
    yield digits(_last(rows, network, "plain", 1)["mean_sensitivity"], 1)
    centred = [_accuracy(rows, network, "centred", p) for p in STRENGTHS[:4]]
    yield from (min(centred), max(centred))
    behind, _, sensitivity = plain_on_vgg5(deep)
    yield from (sensitivity, behind)


def _ends(rows: list[Row], column: str, **wanted: Any) -> float:
    """The mean over seeds, after the last epoch."""
    found = [row for row in where(rows, **wanted) if row["epoch"] == row["epochs"]]
    return statistics.mean(row[column] for row in found)


CERTIFIED = ("mlp", "mlp-weightnorm", "resmlp", "resmlp-mupc")


def certified_everywhere(rows: list[Row]) -> list[float]:
    mine = [row for row in rows if row["examples"] and row["epoch"] == row["epochs"]]
    exact = [row for row in mine if row["rule"].endswith("-exact")]
    return [100 * min(row["successful"] for row in exact), 1]


def certified_networks(rows: list[Row]) -> Iterator[float]:
    """Points more than backpropagation, and sensitivities relative to it."""
    columns = ("plain", 0.1), ("plain", 1), ("plain", 10), ("centred", 1), ("centred", 10)
    for network in CERTIFIED:
        mine = where(rows, network=network)
        for rule, strength in (*columns, ("negative", 1)):
            of = lambda column, rule=f"{rule}-exact", strength=strength, mine=mine: (
                _ends(mine, column, rule=rule, strength=strength),
                _ends(mine, column, rule="backprop"),
            )
            (one, other), (mine_is, theirs_is) = of("accuracy"), of("mean_sensitivity")
            yield from (one - other, mine_is / theirs_is)


def centred_at_ten(rows: list[Row]) -> Iterator[float]:
    yield 10
    for column in ("mean_eigenvalue", "angle", "cost"):
        given = dict(rule="centred-exact", strength=10)
        found = [_ends(where(rows, network=name), column, **given) for name in CERTIFIED]
        yield from (min(found), max(found))


def plain_on_vgg5(rows: list[Row]) -> tuple[float, float, float]:
    """How many points behind backpropagation, and its sensitivity at first and in the end."""
    mine = where(rows, network="vgg5", loss="mse", epochs=25)
    ends = [_ends(mine, "accuracy", rule=rule) for rule in ("backprop", "plain")]
    first = where(mine, rule="backprop", epoch=0)[0]["mean_sensitivity"]
    return ends[0] - ends[1], first, digits(_ends(mine, "mean_sensitivity", rule="plain"), 1)


def certified_with_three_iterations(rows: list[Row]) -> Iterator[float]:
    network = "vgg5-weightnorm"
    yield from (100 * _last(rows, network, "plain", p)["successful"] for p in (0.1, 1, 10))
    yield _accuracy(rows, network, "negative", 1)


STIFF = (
    ("vgg5", "nudged-last-1000", 25),
    ("vgg5", "nudged-last-1e6", 50),
    ("vgg7", "nudged-last", 25),
    ("vgg9", "nudged-last", 25),
    ("resnet18", "nudged-last-1e6", 40),
)


def _at_the_end(rows: list[Row], network: str, rule: str, epochs: int) -> list[Row]:
    """A line for each seed, after the last epoch."""
    mine = where(rows, network=network, rule=rule, epochs=epochs, epoch=epochs, loss="mse")
    assert mine, (network, rule, epochs)
    return mine


def _stiff(rows: list[Row], column: str) -> list[float]:
    """The medians over seeds, for each network."""
    found = [[row[column] for row in _at_the_end(rows, *which)] for which in STIFF]
    return [statistics.median(values) for values in found]


def stiff_networks(rows: list[Row]) -> Iterator[float]:
    """The least and the most of their times, and of their angles."""
    for column in ("cost", "angle"):
        yield from (min(_stiff(rows, column)), max(_stiff(rows, column)))


def time_of_stiff_networks(rows: list[Row]) -> list[float]:
    return [statistics.median(_stiff(rows, "cost"))]


def eigenvalue_of_stiff_networks(rows: list[Row]) -> list[float]:
    found = _stiff(rows, "mean_eigenvalue")
    assert max(found) - min(found) < 0.05
    return [statistics.mean(found)]


def _spread(rows: list[Row]) -> tuple[float, float]:
    found = [row["accuracy"] for row in rows]
    return statistics.mean(found), statistics.stdev(found)


def _certified(rows: list[Row]) -> float:
    return 100 * statistics.mean(row["successful"] for row in rows)


def deep_networks(rows: list[Row]) -> Iterator[float]:
    for network, rule, epochs in STIFF:
        mine = _at_the_end(rows, network, rule, epochs)
        base = where(_at_the_end(rows, network, "backprop", epochs), clip=mine[0]["clip"])
        yield from (epochs, *_spread(base), *_spread(mine))
        yield statistics.median(row["cost"] for row in mine)
        yield from (statistics.mean(row["angle"] for row in mine), _certified(mine))


def chosen_deep_networks(rows: list[Row]) -> list[float]:
    """Each at one number of epochs."""
    found = list(deep_networks(rows))
    return found[:8] + found[16:]


def why_stiff(rows: list[Row]) -> Iterator[float]:
    for rule in ("nudged-last-1000", "nudged", "nudged-own", "plain"):
        mine = _at_the_end(rows, "vgg5", rule, 25)
        cost = statistics.median(row["cost"] for row in mine)
        yield from (len(mine), *_spread(mine), cost, _certified(mine))


def plain_and_its_time(rows: list[Row]) -> Iterator[float]:
    yield from list(why_stiff(rows))[-4:-1]


def with_cross_entropy(rows: list[Row]) -> Iterator[float]:
    mine = where(rows, network="vgg5", loss="ce", epoch=25)
    nudged = where(mine, rule="nudged-last")
    yield from (*_spread(nudged), *_spread(where(mine, rule="backprop")))
    for column in ("mean_eigenvalue", "angle"):
        yield statistics.mean(row[column] for row in nudged)


def how_stiff(rows: list[Row]) -> Iterator[float]:
    mine, base = (_at_the_end(rows, "resnet18", rule, 25) for rule in ("nudged-last", "backprop"))
    yield from (_certified(mine), *_spread(mine), *_spread(base))


def collapsed(cells: list[Row]) -> Iterator[float]:
    """One of three without clipping, in its second epoch, and none with it."""
    mine = [row for row in cells if row["cell"]["network"] == "vgg9"]
    of = lambda rule: [r["found"]["accuracies"] for r in mine if r["cell"]["rule"] == rule]
    (lost,) = [found for found in of("nudged-last-1000") if found[-1] < 20]
    assert len(of("nudged-last-1000")) == len(of("nudged-last")) == 3 and lost[0] > 50
    assert all(found[-1] > 90 for found in of("nudged-last"))
    yield from (lost[1], 0.3)


def behind_and_beside(rows: list[Row]) -> Iterator[float]:
    """How far `plain` falls behind on VGG5, and the times of stiff networks."""
    yield plain_on_vgg5(rows)[0]
    yield from list(stiff_networks(rows))[:2]


def without_clipping(rows: list[Row]) -> Iterator[float]:
    mine = where(rows, network="vgg5", loss="mse", epochs=50, clip=None)
    yield _ends(mine, "accuracy", rule="nudged-last")
    yield from _spread(where(mine, rule="backprop", epoch=50))


def what_depth_does(reach: list[Row], sweep: list[Row], rows: list[Row]) -> Iterator[float]:
    """Steps after which the first layer has not moved, widths whose best rates are ten times
    apart, and how far `plain` falls behind.
    """
    still = max(row["steps"] for row in reach if row["states"] == 0)
    wide, narrow = (min_rate(sweep, "sp", width) for width in (128, 32))
    assert abs(narrow / wide - 10) < 1e-6
    yield from (still, 32, 128, plain_on_vgg5(rows)[0])


def min_rate(rows: list[Row], kind: str, width: int) -> float:
    """The learning rate with the lowest loss, the same at both depths."""
    (rate,) = {
        min(where(rows, param_type=kind, width=width, depth=d), key=lambda r: r["loss"])["rate"]
        for d in (8, 30)
    }
    return rate
