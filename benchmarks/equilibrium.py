"""How close to equilibrium does each method of inference get, and how long does it take?

    JPC_DATA_DIR=... python benchmarks/equilibrium.py [--hidden 3 5 10 30] [--out docs/results]

Networks of layers of 300 units (tanh, or `--act`), 784 inputs, 10 outputs, a batch of 64 images
of MNIST: at initialisation, trained at equilibrium (Equilibrium, 3 chords), and trained the usual
way (20 steps of gradient descent of 0.1). Times are those of inference and the learning gradient
in one loop over batches (20 for those of few steps, 1 for the others), relative to gradients of
backpropagation, interleaved, medians, float32.
Excess is (F - F*) / (F_0 - F*); the error is that of the learning gradient, all layers together
(worst layer in brackets). The reference is Equilibrium to 1e-10 in float64, on the same weights.
Last comes how much longer each family takes than Equilibrium to an excess of 1e-3.
"""

import argparse
import csv
import functools as ft
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import optimistix as optx
from common import (
    BATCH,
    backprop,
    batches,
    device,
    in_parallel,
    in_states,
    network,
    predictive_coding,
    relative_error,
    start,
    to_double,
    train,
)

import jpc

PID = dfx.PIDController
NETWORKS = {
    "initial": "at initialisation",
    "equilibrium": "trained at equilibrium",
    "usual": "trained the usual way",
}


def methods() -> dict[str, dict[str, jpc.AbstractInference]]:
    """Families of methods, each from cheap to accurate."""
    flow = ft.partial(jpc.GradientFlow, throw=False)
    euler = lambda t, reduction="sum": flow(
        dfx.Euler(), t, 0.05, dfx.ConstantStepSize(), reduction=reduction
    )
    descent = lambda optim, steps: jpc.Descent(optim, steps, throw=False)
    return {
        "Equilibrium": {
            f"{k} chords": jpc.Equilibrium(chords=k, max_steps=0, throw=False)
            for k in (1, 2, 3, 4, 6)
        },
        "Equilibrium, S of another batch": {
            f"{k} chords": jpc.Equilibrium(chords=k, max_steps=0, throw=False) for k in (2, 3)
        },
        "Equilibrium, default": {"": jpc.Equilibrium(throw=False)},
        "Heun": {
            f"T={t}, tol {tol:g}": flow(t1=float(t), controller=PID(rtol=tol, atol=tol))
            for t, tol in ((20, 1e-3), (20, 3e-4), (20, 1e-4), (200, 1e-4))
        },
        "Heun, default": {"T=2000": flow(t1=2000.0)},
        "Euler, dt=0.05": {f"T={t}": euler(float(t)) for t in (10, 20, 100)},
        "Euler of the paper (batch mean), dt=0.05": {
            f"T={t}": euler(float(t), "mean") for t in (200, 1000)
        },
        "Tsit5": {"T=200, tol 1e-5": flow(dfx.Tsit5(), 200.0, None, PID(rtol=1e-5, atol=1e-5))},
        "SGD 0.1": {f"{n} steps": descent(optax.sgd(0.1), n) for n in (20, 200)},
        "Adam 0.01": {"100 steps": descent(optax.adam(0.01), 100)},
        "SGD 0.1 in the errors": {f"{n} steps": descent(optax.sgd(0.1), n) for n in (5, 20, 100)},
        "Nonlinear CG": {
            "tol 1e-5": jpc.Minimise(optx.NonlinearCG(1e-5, 1e-5), 200, together=True, throw=False)
        },
    }


def in_errors(inference: jpc.AbstractInference):
    """As `in_states`, in the coordinates of the errors."""

    def infer(layers, x, y):
        nodes, clamps = start(layers, x, y)
        energy, zeros = jpc.EPCEnergy(jpc.PCEnergy()), jax.tree.map(jnp.zeros_like, nodes)
        inferred = inference(energy, layers, zeros, clamps)
        gradient = eqx.filter_grad(energy)(layers, inferred.nodes, clamps)
        return gradient, energy(layers, inferred.nodes, clamps)

    return infer


def with_another_matrix(inference: jpc.Equilibrium):
    """As `in_states`, with a matrix S that was made for another batch."""
    x, y = (a[1] for a in batches(BATCH, 2))

    def infer(layers, *batch):
        prepared = inference.prepare(jpc.PCEnergy(), layers, *start(layers, x, y))
        return in_states(prepared)(layers, *batch)

    return infer


exact = eqx.filter_jit(in_states(jpc.Equilibrium(rtol=1e-10, throw=False)))


def reference(layers, x, y) -> tuple:
    """The learning gradient and the energy at equilibrium, and the energy at the start."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        layers, x, y = to_double((layers, x, y))
        gradient, energy = exact(layers, x, y)
        return gradient, float(energy), float(jpc.PCEnergy()(layers, *start(layers, x, y)))


def trained(hidden: int, steps: int, act: str) -> dict[str, list]:
    layers, data = network(hidden, act=act), batches(BATCH, steps)
    equilibrium = predictive_coding(jpc.Equilibrium(chords=3, max_steps=0, throw=False))
    usual = predictive_coding(jpc.Descent(optax.sgd(0.1), 20, throw=False))
    return {
        "initial": layers,
        "equilibrium": train(equilibrium, layers, *data)(),
        "usual": train(usual, layers, *data)(),
    }


def over_batches(infer, count: int):
    """A method on several batches in one loop of fixed length, since a device waits for its host
    at every turn of any other; it returns the answer for the first of them.
    """

    def loop(layers, x, y):
        answer = lambda batch: eqx.filter(infer(layers, *batch), eqx.is_array)
        batches = (x[:count][::-1], y[:count][::-1])
        zeros = jax.tree.map(jnp.zeros_like, eqx.filter_eval_shape(answer, (x[0], y[0])))
        return jax.lax.scan(lambda _, batch: (answer(batch), None), zeros, batches)[0]

    return loop


class Call(NamedTuple):
    """A compiled method, and how many batches it takes at once."""

    function: Callable
    count: int


def compiled(only: list[str], count: int, layers, x, y) -> dict[tuple[str, str], Call]:
    """All methods; `count` batches for the fast ones, 1 for the others."""
    found = {("backpropagation", ""): (backprop, count)}
    special = {
        "SGD 0.1 in the errors": in_errors,
        "Equilibrium, S of another batch": with_another_matrix,
    }
    for family, members in methods().items():
        if not family.startswith(tuple(only)):
            continue
        how = special.get(family, in_states)
        for name, method in members.items():
            fast = name.endswith(("chords", "steps"))
            found[family, name] = (how(method), count if fast else 1)

    def compile_one(pair) -> Call:
        loop = eqx.filter_jit(over_batches(*pair))
        return Call(loop.lower(layers, x, y).compile(), pair[1])

    return in_parallel(compile_one, found)


def time_all(calls: dict[Any, Call], data, repeats: int) -> tuple[dict, dict]:
    """The median time of each for one batch, taken in turns after a first call, and what that
    returned.
    """
    answers = {n: jax.block_until_ready(c.function(*data)) for n, c in calls.items()}
    times = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            if sum(times[name]) * call.count < 10:  # Slow ones are timed once or twice.
                times[name].append(timed(call.function, *data) / call.count)
    return {name: statistics.median(values) for name, values in times.items()}, answers


def timed(call, *args) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(call(*args))
    return time.perf_counter() - begin


def measure(calls, layers, x, y, repeats: int) -> list[dict]:
    gradient, best, first = reference(layers, x[0], y[0])
    median, answers = time_all(calls, (layers, x, y), repeats)
    rows = []
    for (family, name), answer in answers.items():
        row = dict(method=family, setting=name, ms=1e3 * median[family, name])
        row["ratio"] = median[family, name] / median["backpropagation", ""]
        if family != "backpropagation":
            found, energy = answer
            row["excess"] = max((float(energy) - best) / (first - best), 1e-8)
            row["error"], row["worst"] = relative_error(found, gradient)
        rows.append(row)
    return rows


def plot(rows: list[dict], path: Path) -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415  (not on every device)

    panels = sorted({(r["hidden"], r["network"]) for r in rows})
    families = [f for f in methods() if any(r["method"] == f for r in rows)]
    hiddens, kinds = sorted({p[0] for p in panels}), sorted({p[1] for p in panels})
    figure, axes = plt.subplots(
        len(kinds),
        len(hiddens),
        figsize=(4 * len(hiddens), 3.2 * len(kinds)),
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    for i, kind in enumerate(kinds):
        for j, hidden in enumerate(hiddens):
            axis = axes[i, j]
            for k, family in enumerate(families):
                where = (hidden, kind, family)
                mine = [r for r in rows if (r["hidden"], r["network"], r["method"]) == where]
                mine.sort(key=lambda r: r["ratio"])
                points = [r["ratio"] for r in mine], [r["error"] for r in mine]
                axis.loglog(*points, "o-", label=family, color=plt.get_cmap("tab20")(k))
            axis.axhline(0.01, color="grey", lw=0.5, ls=":")
            axis.set_title(f"H = {hidden}, {kind}", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("time / backpropagation")
    for axis in axes[:, 0]:
        axis.set_ylabel("error of the learning gradient")
    axes[0, -1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, nargs="+", default=[3, 5, 10, 30])
    parser.add_argument("--steps", type=int, default=900, help="of training")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, default=20, help="in one loop")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--only", nargs="+", default=[""], help="methods whose name begins so")
    parser.add_argument(
        "--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS, help="trained how"
    )
    parser.add_argument("--act", default="tanh", help="the activation function")
    parser.add_argument("--plot", action="store_true", help="only draw what was measured before")
    args = parser.parse_args()
    if args.plot:
        with open(args.out / "equilibrium.csv") as file:
            number = lambda value: float(value.replace(",", "")) if value else None
            numbers = ("ms", "ratio", "excess", "error", "worst")
            rows = [r | {k: number(r[k]) for k in numbers} for r in csv.DictReader(file)]
            rows = [r | dict(hidden=int(r["hidden"])) for r in rows if r["error"]]
        return plot(rows, args.out / "equilibrium.png")
    args.out.mkdir(parents=True, exist_ok=True)
    print(device())
    x, y = batches(BATCH, args.batches)
    rows = []
    for hidden in args.hidden:
        networks = trained(hidden, args.steps, args.act)
        calls = compiled(args.only, args.batches, networks["initial"], x, y)
        for name in args.networks:
            kind, layers = NETWORKS[name], networks[name]
            print(f"\n{hidden} hidden layers, {kind}")
            for row in measure(calls, layers, x, y, args.repeats):
                rows.append(dict(hidden=hidden, network=kind, **row))
                accuracy = (
                    f"excess {row['excess']:.0e}  gradient {row['error']:.0e} ({row['worst']:.0e})"
                    if "error" in row
                    else ""
                )
                label = f"{row['method']} {row['setting']}"
                print(f"  {label:36s} {row['ms']:9.3f} ms {row['ratio']:8.2f} x  {accuracy}")
            write(rows, args.out)
            compare([r for r in rows if (r["hidden"], r["network"]) == (hidden, kind)])
    try:
        plot([r for r in rows if "error" in r], args.out / "equilibrium.png")
    except ImportError:
        print("No matplotlib here: no picture.")


def compare(rows: list[dict], excess: float = 1e-3) -> None:
    """The cheapest setting of each family that gets there, relative to Equilibrium's."""
    cheapest = {}
    for row in rows:
        if row.get("excess", 1.0) <= excess:
            best = cheapest.setdefault(row["method"], row)
            cheapest[row["method"]] = min(best, row, key=lambda r: r["ms"])
    if "Equilibrium" not in cheapest:
        return
    print(f"  To an excess of {excess:g}, relative to Equilibrium:")
    for family, row in cheapest.items():
        ratio = row["ms"] / cheapest["Equilibrium"]["ms"]
        print(f"    {family:42s} {row['setting']:16s} {ratio:9.1f} x")


def write(rows: list[dict], out: Path) -> None:
    with open(out / "equilibrium.csv", "w", newline="") as file:
        columns = [
            "hidden",
            "network",
            "method",
            "setting",
            "ms",
            "ratio",
            "excess",
            "error",
            "worst",
        ]
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
