"""As `numbers_of_pages.py`, for the pages on variants and for those that choose among them."""

from collections.abc import Iterator

from numbers_of_pages import Row, where

# Temporal.


def _of_task(rows: list[Row], task: str) -> dict[str, Row]:
    return {row["row"]: row for row in where(rows, task=task)}


def _by_steps(found: dict[str, Row]) -> list[float]:
    return [found[f"tPC, steps of 0.1: {count}"]["mean"] for count in (1, 5, 10, 20)]


def tracking(rows: list[Row]) -> Iterator[float]:
    found = _of_task(rows, "Tracking")
    spread = lambda name: (found[name]["mean"], found[name]["deviation"])
    yield from spread("Kalman filter")
    yield from _by_steps(found)
    yield from (*spread("tPC at equilibrium"), *spread("tPC with Kalman's covariance"))


def linear_gaussian(rows: list[Row]) -> Iterator[float]:
    found = _of_task(rows, "Linear-Gaussian")
    mean = lambda name: found[name]["mean"]
    yield from (mean("Kalman filter"), mean("tPC with Kalman's covariance"))
    yield from _by_steps(found)
    yield from (mean("tPC at equilibrium"), mean("Kalman's smoother"), mean("tPC, smoothing"))


def largest_differences(rows: list[Row]) -> list[float]:
    return [row["mean"] for row in where(rows, task="Largest difference")[:2]]


def learning_a_system(rows: list[Row]) -> list[float]:
    return [row["mean"] for row in where(rows, task="Learning")]


def energies_of_learning(rows: list[Row]) -> list[float]:
    return [row["mean"] for row in where(rows, task="Energies")]


# Error coordinates.


def reach(rows: list[Row]) -> Iterator[float]:
    for steps in (8, 20, 64, 200):
        (row,) = where(rows, steps=steps)
        yield from (row["states"], row["errors"])


def reach_in_errors(rows: list[Row]) -> list[float]:
    """The steps that the first layer has not moved in, and how far it has gone in its errors."""
    (row,) = where(rows, steps=20)
    assert row["states"] == 0
    return [row["steps"], row["errors"]]


# muPC.


def cosines(rows: list[Row]) -> list[float]:
    return [where(rows, width=width)[0]["cosine"] for width in (4, 16, 64, 256)]


def accuracies_by_step_size(rows: list[Row]) -> Iterator[float]:
    """Those that diverged are not numbers."""
    for method in ("states", "errors"):
        for size in (0.003, 0.01, 0.03, 0.1, 0.3):
            (row,) = where(rows, method=method, step_size=size)
            yield from [row["accuracy"]] if row["accuracy"] != "nan" else []


def accuracies_by_depth(rows: list[Row]) -> Iterator[float]:
    for layers in (30, 100):
        methods = (f"Heun to t = {layers // 2}", f"{layers} steps of 0.5", "equilibrium, 2 chords")
        for name in methods:
            (row,) = where(rows, layers=layers, inference=name)
            yield row["accuracy"]


def reached_by_steps(rows: list[Row]) -> list[float]:
    (row,) = where(rows, inference="30 steps of 0.5")
    return [row["reached"], row["layers"]]


def exact_at_a_hundred(rows: list[Row]) -> list[float]:
    *_, steps, exact = accuracies_by_depth(rows)
    return [exact, steps]


def mnist_by_mupc(rows: list[Row]) -> list[float]:
    return [rows[0]["accuracy"]]


# All variants.

VARIANTS = (
    "backpropagation", "PC, the paper's flow", "PC, each its own flow", "PC, 20 steps of 0.1",
    "PC, exact", "incremental PC", "bidirectional PC", "predictive dendrites, 0.1 of the error",
    "predictive dendrites, 0 of the error", "hybrid PC", "error coordinates, 20 steps of 0.1",
    "muPC", "learned precisions", "PC, exact, cross-entropy, precision 0.1", "PC, exact, bits",
    "Monte Carlo PC, precision 1,000", "the chain as a graph, exact",
)  # fmt: skip
CHOSEN = tuple(VARIANTS[place] for place in (0, 1, 4, 5, 6, 15))


def _variants(rows: list[Row], names: tuple[str, ...]) -> Iterator[float]:
    """The time, from the least to the most if it is a range, and accuracies with their spread."""
    for name in names:
        mine = where(rows, variant=name)
        yield from sorted({mine[0]["ratio"], mine[0]["ratio_most"]})
        for row in mine:
            yield from (row["accuracy"], row["deviation"])


def all_variants(rows: list[Row]) -> Iterator[float]:
    yield from _variants(rows, VARIANTS)


def chosen_variants(rows: list[Row]) -> Iterator[float]:
    yield from _variants(rows, CHOSEN)


def _mnist(rows: list[Row], name: str) -> Row:
    return where(rows, variant=name, data="mnist")[0]


def costs_of_losses(rows: list[Row]) -> Iterator[float]:
    for name in ("PC, exact, cross-entropy, precision 0.1", "PC, exact, bits"):
        yield _mnist(rows, name)["ratio"]
    exact = _mnist(rows, "PC, exact")
    yield from (exact["ratio"], exact["ratio_most"])


def cross_entropy_or_squares(rows: list[Row]) -> Iterator[float]:
    for data in ("mnist", "fashion-mnist"):
        for name in ("PC, exact, cross-entropy, precision 0.1", "PC, exact"):
            yield where(rows, variant=name, data=data)[0]["accuracy"]


def flow_and_equilibrium(rows: list[Row]) -> Iterator[float]:
    yield from (_mnist(rows, name)["accuracy"] for name in ("PC, the paper's flow", "PC, exact"))


# Monte Carlo.


def nats(rows: list[Row]) -> Iterator[float]:
    for name in ("mcpc", "map", "independent"):
        row = where(rows, learned_from=name)[0]
        yield from (row["nll"], row["error"], row["gap"], row["mse"])


def nats_by_epochs(rows: list[Row]) -> Iterator[float]:
    for name in ("map", "mcpc"):
        for epochs in (4, 12):
            yield where(rows, learned_from=name, epochs=epochs)[0]["nll"]


# Bidirectional.

OF_BPC = ("20 steps of 0.1", "one step of 0.5 / 64", "weights 1 : 1")
ALSO_OF_BPC = ("a tenth of the labels", "predictive dendrites")


def bidirectional(rows: list[Row]) -> Iterator[float]:
    found = {row["setting"]: (row["accuracy"], row["error"]) for row in rows}
    both = lambda name: (*found[f"depth 2{name}"], *found[f"depth 6{name}"])
    yield from both("")
    yield from (found[f"depth {depth}, seed {seed}"][0] for depth in (2, 6) for seed in (1, 2))
    for name in OF_BPC:
        yield from both(f", {name}")
    yield from found["depth 6, skip connections"]
    for name in ALSO_OF_BPC:
        yield from both(f", {name}")


def of_both_depths(rows: list[Row]) -> list[float]:
    """All seeds with the default are as close to this as its digits say."""
    names = [f"depth {depth}{seed}" for depth in (2, 6) for seed in ("", ", seed 1", ", seed 2")]
    found = [where(rows, setting=name)[0]["accuracy"] for name in names]
    assert max(found) - min(found) < 0.5
    return [sum(found) / len(found)]


def shallow_dendrites(rows: list[Row]) -> list[float]:
    return [where(rows, setting="depth 2, predictive dendrites")[0]["accuracy"]]


# Incremental.

BEST = (("PC", True), ("iPC", True), ("PC", False), ("iPC", False))


def _tests(rows: list[Row], method: str, decay: bool) -> list[Row]:
    mine = where(rows, method=method, decay=str(decay))
    return [row for row in mine if isinstance(row["seed"], int)]


def _mean(rows: list[Row]) -> float:
    return sum(row["accuracy"] for row in rows) / len(rows)


def _validated(rows: list[Row], method: str, decay: bool) -> list[Row]:
    """Without those that diverged."""
    mine = where(rows, method=method, decay=str(decay), seed="validation")
    assert len(mine) == 15
    return [row for row in mine if row["accuracy"] != "nan"]


def incremental(rows: list[Row]) -> Iterator[float]:
    """Tested with the setting that is best on the validation images."""
    for method, decay in BEST:
        found = _tests(rows, method, decay)
        best = max(_validated(rows, method, decay), key=lambda row: row["accuracy"])
        assert all(row[name] == best[name] for row in found for name in ("step_size", "rate"))
        yield from (best["step_size"], best["rate"])
        yield from (*(row["accuracy"] for row in found), _mean(found))


def means_of_incremental(rows: list[Row]) -> Iterator[float]:
    for decay in (True, False):
        yield from (_mean(_tests(rows, method, decay)) for method in ("iPC", "PC"))


def validation_of_incremental(rows: list[Row]) -> Iterator[float]:
    for method, diverged in (("iPC", 0), ("PC", 1)):
        tried = _validated(rows, method, True)
        assert len(tried) == 15 - diverged
        found = [row["accuracy"] for row in tried if row["rate"] >= 1e-4]
        yield from (min(found), max(found))


# Memory.


def recalled(rows: list[Row]) -> Iterator[float]:
    names = ("stored", "half", "mean", "half_right", "noise", "noisy", "noise_right")
    for row in where(rows, updates=500):
        yield from (row[name] for name in names)


def overlearned(rows: list[Row]) -> list[float]:
    return [where(rows, updates=count, stored=64)[0]["half_right"] for count in (2000, 500)]


# How learning rates transfer.


def _networks(rows: list[Row], kinds: tuple[str, ...]) -> Iterator[dict[float, float]]:
    """The losses of each network by learning rate."""
    for kind in kinds:
        for depth in (8, 30):
            for width in (32, 128):
                mine = where(rows, param_type=kind, width=width, depth=depth)
                yield {row["rate"]: row["loss"] for row in mine}


def sweep(rows: list[Row]) -> Iterator[float]:
    for place, losses in enumerate(_networks(rows, ("mupc", "ntp", "sp"))):
        yield from ((32, 128)[place % 2], (8, 30)[place // 2 % 2], *losses.values())


def best_rates(rows: list[Row]) -> Iterator[float]:
    for losses in _networks(rows, ("mupc", "ntp", "sp")):
        yield min(losses, key=lambda rate: losses[rate])


def best_of_ntp(rows: list[Row]) -> list[float]:
    """The same everywhere; at their best rates muPC is ahead of it, and of no scalings."""
    kinds = ("mupc", "ntp", "sp")
    lowest = [[min(losses.values()) for losses in _networks(rows, (kind,))] for kind in kinds]
    assert all(one < min(others) for one, *others in zip(*lowest, strict=True))
    (rate,) = set(list(best_rates(rows))[4:8])
    return [rate]


def transfer(rows: list[Row]) -> Iterator[float]:
    """The best rates of either width, the same at both depths, and what the other one costs."""
    best = list(best_rates(rows))
    assert best[:2] == best[2:4] and best[8:10] == best[10:]
    yield from (best[0], 32, best[1], 128)
    found = _networks(rows, ("mupc",))
    yield max(max(losses[rate] for rate in best[:2]) - min(losses.values()) for losses in found)
    yield from (best[8], 32, best[9], 128)


def best_of_mupc(rows: list[Row]) -> Iterator[float]:
    losses = list(_networks(rows, ("mupc",)))
    yield from {min(found, key=lambda rate: found[rate]) for found in losses}
    yield from (min(found.values()) for found in losses)


# A tutorial.


def tutorial(rows: list[Row]) -> list[float]:
    return [where(rows, epoch=epoch)[0]["accuracy"] for epoch in (1, 10)]
