"""As `numbers_of_pages.py`, for the pages that say what something costs, and for rounding."""

from collections.abc import Iterator

from numbers_of_pages import Row, digits, where
from numbers_of_variants import costs_of_losses

# A step.

SHAPES = ((3, 300, 64), (10, 300, 64), (5, 300, 1024), (5, 1024, 64))
OF_A_STEP = (
    "2 chords, S every 25 batches", "2 chords, S every 10 batches",
    "3 chords, S every 25 batches", "3 chords, S every 10 batches", "2 chords", "3 chords",
)  # fmt: skip


def _of_shapes(
    rows: list[Row], device: str, method: str, column: str, shapes: tuple = SHAPES
) -> Iterator[float]:
    mine = [row for row in where(rows, method=method) if device in row["device"]]
    for hidden, width, batch in shapes:
        yield where(mine, hidden=hidden, width=width, batch=batch)[0][column]


def times_of_a_step(rows: list[Row]) -> Iterator[float]:
    yield from _of_shapes(rows, "H200", "backpropagation", "ms")
    for method in OF_A_STEP:
        yield from _of_shapes(rows, "H200", f"Equilibrium, {method}", "ratio")


def step_of_ten_layers(rows: list[Row]) -> Iterator[float]:
    ms, ratio = (
        where(rows, hidden=10, method=method)[0]
        for method in ("backpropagation", "Equilibrium, 2 chords")
    )
    yield from (ms["ms"] * ratio["ratio"], ratio["ratio"], ms["ms"], _operations(10, of=2))


def _operations(chords: int, *, of: int, batch: int = 64) -> float:
    """Those of a step, relative to fewer chords: as `benchmarks/scaling.py` counts them."""
    count = lambda chords: (4 + 4 * chords) * batch + 2 * 4 * 10
    return count(chords) / count(of)


def times_of_a_step_on_a_cpu(rows: list[Row]) -> Iterator[float]:
    depths, others = ((3, 300, 64), (5, 300, 64), (10, 300, 64)), SHAPES[2:]
    of = lambda method, shapes: _of_shapes(rows, "CPU", f"Equilibrium, {method}", "ratio", shapes)
    for method in OF_A_STEP[4:]:
        yield from of(method, depths)
    for shape in others:
        yield from (next(of(method, (shape,))) for method in OF_A_STEP[4:])


def least_and_most_of_a_step(rows: list[Row]) -> tuple[float, float]:
    found = list(times_of_a_step(rows))[len(SHAPES) :]
    return min(found), max(found)


def times_and_errors_of_chords(rows: list[Row], errors: list[Row]) -> Iterator[float]:
    times = lambda method: _of_shapes(rows, "H200", f"Equilibrium, {method}", "ratio")
    for name in ("2 chords", "2 chords, S every 10 batches", "3 chords"):
        yield from list(times(name))[:2]
        new = where(errors, network="at initialisation", method="Equilibrium", setting=name)
        yield from (where(new, hidden=hidden)[0]["error"] for hidden in (3, 10) if new)


def both_solvers(rows: list[Row]) -> Iterator[float]:
    for method in (OF_A_STEP[0], OF_A_STEP[2]):
        mine = where(rows, method=f"Equilibrium, {method}")
        for hidden, width, batch in SHAPES:
            both = where(mine, hidden=hidden, width=width, batch=batch)
            yield from (where(both, solver=name)[0]["ratio"] for name in ("before", "after"))


# An epoch.


def times_in_fit(rows: list[Row]) -> Iterator[float]:
    for method in ("backpropagation", "Equilibrium()", "chords=2, max_steps=0"):
        for row in where(rows, method=method, run=1):
            yield row["ms"]
            yield from [row["ratio"]] if method != "backpropagation" else []


def least_and_most_in_fit(rows: list[Row]) -> list[float]:
    ratios = [row["ratio"] for row in where(rows, method="Equilibrium()", run=1)]
    return [min(ratios), max(ratios)]


def in_another_run(rows: list[Row]) -> Iterator[float]:
    mine = where(rows, method="Equilibrium()")
    yield 100 * where(mine, run=1, hidden=10)[0]["converged"]
    yield from (row["ratio"] for row in where(mine, run=2))


def times_in_fit_on_a_cpu(rows: list[Row]) -> Iterator[float]:
    for method in ("backpropagation", "Equilibrium()", "chords=3, max_steps=0"):
        for row in where(rows, method=method):
            yield row["ms"]
            yield from [row["ratio"]] if method != "backpropagation" else []


def converged_on_a_cpu(rows: list[Row]) -> list[float]:
    (row,) = where(rows, method="Equilibrium()", hidden=10)
    return [100 * row["converged"]]


CHORDS = "Equilibrium, 2 chords, S every 10 batches"
FLOW = "Heun, the paper's settings"
LOOPS = (f"{FLOW}, Python loop", "Heun, T = 20, Python loop")
PCX = "pcx 0.6.3, T = 20, Python loop"


def _seconds(rows: list[Row], method: str) -> list[float]:
    return [row["seconds"] for row in where(rows, method=method)]


def _ratios(rows: list[Row], method: str) -> list[float]:
    return [row["ratio"] for row in where(rows, method=method)]


def epochs(rows: list[Row]) -> Iterator[float]:
    for method in (CHORDS, FLOW, *LOOPS, PCX):
        for row in where(rows, method=method):
            yield from (row["seconds"], row["ratio"])


def epochs_of_backpropagation(rows: list[Row]) -> list[float]:
    return _seconds(rows, "backpropagation")


def loops_against_scans(rows: list[Row]) -> tuple[float, float]:
    scans = _seconds(rows, CHORDS)
    loops = [_seconds(rows, method) for method in LOOPS]
    found = [one / scan for loop in loops for one, scan in zip(loop, scans, strict=True)]
    return min(found), max(found)


def epochs_of_heun(rows: list[Row]) -> Iterator[float]:
    for method in (FLOW, LOOPS[0]):
        yield from (min(_ratios(rows, method)), max(_ratios(rows, method)))


def epochs_of_pcx(rows: list[Row]) -> Iterator[float]:
    yield from (*_ratios(rows, PCX), *_ratios(rows, CHORDS))
    yield from (min(_ratios(rows, LOOPS[0])), max(_ratios(rows, LOOPS[0])))


def times_of_a_flow(rows: list[Row]) -> Iterator[float]:
    methods = ("GradientFlow", "GradientFlow, nodes not one array", "by hand, always to T")
    yield from (row["ratio"] for method in methods for row in where(rows, method=method))


# One table of all.

METHODS = (
    "backpropagation, loop", "the original", "pcx 0.6.3, loop", "make_pc_step, loop",
    "Equilibrium(), loop", "backpropagation, fit", "Equilibrium(), fit", "2 chords, fit",
)  # fmt: skip
NETWORKS_OF_ALL = ("300x3", "300x5", "300x10", "300x30", "1024x3", "1024x10")
SMALL = (*(f"784-{name}-10, batch 64" for name in NETWORKS_OF_ALL), "VGG5, 16, batch 64")
LARGE = tuple(f"784-{name}-10, batch 1024" for name in ("300x3", "300x10", "1024x3"))
STEPS = {64: 937, 1024: 58}  # Of an epoch of MNIST.


def _of_all(rows: list[Row], cases: tuple[str, ...]) -> Iterator[Row | None]:
    for method in METHODS:
        for case in cases:
            yield next(iter(where(rows, case=case, method=method)), None)


def _steps_of_all(rows: list[Row], cases: tuple[str, ...]) -> Iterator[float | None]:
    for row in _of_all(rows, cases):
        base = row is not None and row["method"] == "backpropagation, fit"
        yield row and row["ms"]
        yield from [row["ratio"]] if row and not base else []


def steps_of_small_batches(rows: list[Row]) -> Iterator[float | None]:
    yield from _steps_of_all(rows, SMALL)


def steps_of_large_batches(rows: list[Row]) -> Iterator[float | None]:
    yield from _steps_of_all(rows, LARGE)


def epochs_of_all(rows: list[Row]) -> Iterator[float | None]:
    for row in _of_all(rows, (SMALL[0], SMALL[2], SMALL[4], *LARGE)):
        batch = row and int(row["case"].rpartition(" ")[2])
        yield row and row["ms"] * STEPS[batch] / 1000


def first_steps(rows: list[Row]) -> Iterator[float | None]:
    for row in _of_all(rows, (SMALL[0], SMALL[2], SMALL[3], SMALL[6])):
        yield row and row["first"]


def ratios_of_the_default(rows: list[Row]) -> Iterator[float]:
    """At batch 64, least and most, then beside the original."""
    ratio = lambda method, case: where(rows, method=method, case=case)[0]["ratio"]
    mine = [ratio("Equilibrium(), fit", case) for case in SMALL[:3]]
    yield from (min(mine), max(mine))
    calls = [(ratio("make_pc_step, loop", c), ratio("the original", c)) for c in SMALL[:3]]
    beside = [ours / theirs for ours, theirs in calls]
    yield from (min(beside), max(beside))


def who_has_converged(rows: list[Row]) -> Iterator[float]:
    """With the default in `fit`, and with 2 chords, in percent: the least of each. Then VGG5."""
    for method in ("Equilibrium(), fit", "2 chords, fit"):
        for cases in ((*SMALL[:3], *SMALL[4:6], *LARGE), (SMALL[3],)):
            shares = [where(rows, method=method, case=case) for case in cases]
            yield 100 * min(row["converged"] for found in shares for row in found)
    yield 100 * where(rows, method="Equilibrium(), fit", case=SMALL[6])[0]["converged"]


ON_A_GPU = tuple(method for method in METHODS if method != "the original")
FEW = (*(f"784-{name}-10, batch 64" for name in ("300x3", "300x5", "300x10", "1024x3")),)
FEW += ("VGG5, 128, batch 64",)
MANY = tuple(f"784-{name}-10, batch 1024" for name in ("300x3", "300x10", "1024x3", "1024x10"))


def _on_a_gpu(rows: list[Row], cases: tuple[str, ...]) -> Iterator[float | None]:
    for method in ON_A_GPU:
        for case in cases:
            row = next(iter(where(rows, case=case, method=method)), None)
            yield row and row["ms"]
            yield from [row["ratio"]] if row and method != "backpropagation, fit" else []


def small_batches_on_a_gpu(rows: list[Row]) -> Iterator[float | None]:
    yield from _on_a_gpu(rows, FEW)


def large_batches_on_a_gpu(rows: list[Row]) -> Iterator[float | None]:
    yield from _on_a_gpu(rows, MANY)


def memory_on_a_gpu(rows: list[Row]) -> Iterator[float]:
    for method in ON_A_GPU:
        yield from (where(rows, case=case, method=method)[0]["memory"] for case in MANY)


def the_default_on_a_gpu(rows: list[Row]) -> Iterator[float]:
    mine = where(rows, method="Equilibrium(), fit")
    yield where(mine, case=FEW[-1])[0]["ratio"]
    yield from _least_and_most([row for row in mine if row["case"] in MANY], "ratio")


def least_and_most_of_convolutions(rows: list[Row]) -> Iterator[float]:
    ratios = [row["ratio"] for row in rows if "in fit" in row["method"]]
    yield from (min(ratios), max(ratios))
    yield from (row["ratio"] for row in rows if "Heun" in row["method"])


# Many devices, and another library.


def scaling(rows: list[Row]) -> Iterator[float]:
    names = ("devices", "compute_ms", "sent_mb", "send_ms", "efficiency", "batch")
    for row in rows:
        yield from (row[name] for name in names)


def calls_beside_the_original(rows: list[Row]) -> Iterator[float]:
    for row in rows:
        yield from (row["original"], row["ours"], row["ours"] / row["original"])


def calls_on_a_gpu(rows: list[Row]) -> Iterator[float]:
    yield from calls_beside_the_original([row for row in rows if row["original"]])


def least_and_most_of_calls_on_a_gpu(rows: list[Row]) -> tuple[float, float]:
    ratios = list(calls_on_a_gpu(rows))[2::3]
    return min(ratios), max(ratios)


def differences_of_calls(rows: list[Row]) -> list[float]:
    """Of those whose answers have the same shapes."""
    return [row["difference"] for row in rows if isinstance(row["difference"], float)]


def agreement(rows: list[Row]) -> Iterator[float]:
    for row in rows:
        yield from [row["tolerance"]] if row["where"] == rows[0]["where"] else []
        yield row["difference"]


# Rounding.


def _norms(rows: list[Row], t1: float, flow: str, kind: str) -> list[float]:
    return [row["norm"] for row in where(rows, t1=t1, flow=flow, kind=kind)]


def first_norm(rows: list[Row]) -> list[float]:
    return _norms(rows, 100, "Heun", "gradient")[:1]


def norms_of_layers(rows: list[Row]) -> Iterator[float]:
    some = lambda *which: [_norms(rows, *which)[layer - 1] for layer in (1, 2, 3, 4, 5, 11)]
    yield from (*some(100, "Heun", "gradient"), *some(100, "Heun", "error"))
    yield from some(100, "Heun, jax.vmap", "error")
    for dt in (2, 0.05):
        flow = f"Euler, dt = {dt}"
        yield from (dt, *some(200, flow, "gradient"), *some(200, flow, "error"))


def lost_by_small_steps(rows: list[Row]) -> Iterator[float]:
    """Of the first layer's gradient, and in percent of the second's."""
    right, wrong = (_norms(rows, 200, "Euler, dt = 0.05", kind) for kind in ("gradient", "error"))
    yield from (wrong[0], right[0], 100 * wrong[1] / right[1])


def rounding_on_an_accelerator(rows: list[Row]) -> Iterator[float]:
    for products in ("tuned", "not tuned"):
        yield from (row["norm"] for row in where(rows, products=products)[:3])


def chains_as_graphs(rows: list[Row]) -> list[float]:
    assert all(row["difference"] == 0 for row in rows)
    return [min(row["ratio"] for row in rows), max(row["ratio"] for row in rows)]


# Compiling.

OF_COMPILING = (
    "backpropagation", "Equilibrium, 3 chords", "Equilibrium, default", "Heun, default",
)  # fmt: skip


def first_calls(rows: list[Row]) -> Iterator[float]:
    for method in OF_COMPILING:
        yield from (row["processor"] for row in where(rows, method=method))


def first_calls_of_a_hundred(rows: list[Row]) -> list[float]:
    return [where(rows, method=name, layers=100)[0]["processor"] for name in OF_COMPILING[1::2]]


def growth_of_first_calls(rows: list[Row]) -> Iterator[float]:
    for method in ("Equilibrium, 3 chords", "Heun, default"):
        few, many = (row["processor"] for row in where(rows, method=method))
        yield many / few


# Rectifiers.


def rectifiers(rows: list[Row]) -> Iterator[float]:
    for row in rows:
        yield from (row["ratio"], row["error"], 100 * row["certified"])


def rectifiers_by_themselves(rows: list[Row]) -> list[float]:
    ratios = [row["ratio"] for row in where(rows, method="by itself")]
    return [min(ratios), max(ratios)]


# Large outputs.


def _large(rows: list[Row], **wanted: object) -> list[Row]:
    return [row for row in where(rows, **wanted) if "CPU" in row["device"]]


def _least_and_most(rows: list[Row], column: str, times: float = 1) -> Iterator[float]:
    found = [times * row[column] for row in rows]
    yield from (min(found), max(found))


def large_outputs(rows: list[Row]) -> Iterator[float]:
    for act in ("tanh", "gelu"):
        for network in ("at initialisation", "trained"):
            for precision in (0.1, 1):
                mine = _large(rows, act=act, network=network, precision=precision)
                found = {row["method"]: row for row in mine}
                yield precision
                for method in ("as in fit", "3 iterations", "5 iterations", "default"):
                    row = found[f"{method}, prepared"]
                    yield from (row["ratio"], row["error"], 100 * row["certified"])
                yield found["default"]["ratio"]


def _by_default_at_one(rows: list[Row]) -> Iterator[float]:
    mine = [r for r in _large(rows, precision=1) if r["method"].startswith("default")]
    assert all(row["certified"] == 1 for row in mine), "all examples"
    yield from _least_and_most(mine, "ratio")


def large_outputs_at_one(rows: list[Row]) -> Iterator[float]:
    yield from _by_default_at_one(rows)
    fit = _large(rows, precision=1, method="as in fit, prepared")
    yield from _least_and_most(fit, "ratio")
    yield from _least_and_most(fit, "certified", 100)
    yield 100 * max(row["error"] for row in fit)
    three = _large(rows, precision=1, method="3 iterations, prepared")
    assert not any(row["certified"] for row in three), "none of the examples"
    yield from _least_and_most(three, "error", 100)


def certified_at_a_tenth(rows: list[Row]) -> Iterator[float]:
    fit = _large(rows, precision=0.1, method="as in fit, prepared")
    yield from _least_and_most(fit, "ratio")
    yield from _least_and_most(fit, "certified", 100)
    yield 100 * max(row["error"] for row in fit)


def large_outputs_on_an_h200(rows: list[Row]) -> list[float]:
    return [row["ratio"] for row in rows if "H200" in row["device"]]


def what_costs_more(rows: list[Row], variants: list[Row]) -> Iterator[float]:
    """Of large outputs, and of losses."""
    yield from _least_and_most(_large(rows, precision=0.1, method="as in fit, prepared"), "ratio")
    yield from _by_default_at_one(rows)
    yield from costs_of_losses(variants)


def many_layers(rows: list[Row], gpu: list[Row]) -> Iterator[float]:
    """Times of 30 layers, and their largest error in percent; those of 100 layers; a GPU's."""
    mine, there = (where(some, method="Equilibrium, default") for some in (rows, gpu))
    yield from _least_and_most(mine + there, "ratio")
    few = where(mine, hidden=30)
    yield from (row["ratio"] for row in few)
    yield 100 * max(row["error"] for row in few)
    [many] = where(mine, hidden=100)
    yield from (many["ratio"], 100 * many["error"])
    yield from (row["ratio"] for row in there)
    yield 100 * max(row["error"] for row in there)


def sensitive(rows: list[Row]) -> tuple[float, float]:
    """By how much an output moves in the end, squared, and the longest call."""
    assert all(row["converged"] > 1 - 1e-6 for row in rows), "all examples"
    return digits(rows[-1]["sensitivity"], 1), max(row["ratio"] for row in rows)
