"""Which rule of learning trains deep networks, at what cost, and how far from backpropagation?

    JPC_DATA_DIR=... python benchmarks/rules.py [--networks vgg5] [--epochs 25] [--seeds 3]
        [--rules backprop nudged-1 ...] [--losses mse] [--out results.jsonl]

CIFAR-10 with flips and crops, batch 128, AdamW at 1e-3 (warm-up, cosine) for every rule: test
accuracy over seeds, the time of an epoch relative to backpropagation in the same run, and the
regime of the trained network on 256 training images. Every run is a line of `--out`; what is there
already is not run again.
"""

import argparse
import json
import pathlib
import statistics
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from common import device, start
from deep import LOSSES, accuracy, load, make_epoch, optimiser

import jpc

CHORDS = jpc.Equilibrium(chords=3, max_steps=0, throw=False)


def nudged(**options) -> jpc.Nudged:
    return jpc.Nudged(throw=False, **options)


# Each is a rule and the precision of the output.
RULES = {
    "backprop": (jpc.Backprop(), 1.0),
    "plain-0.01": (CHORDS, 0.01),
    "plain-0.1": (CHORDS, 0.1),
    "plain-1": (CHORDS, 1.0),
    "nudged-0.1": (nudged(strength=0.1), 1.0),
    "nudged-1": (nudged(strength=1.0), 1.0),
    "nudged-10": (nudged(strength=10.0), 1.0),
    "nudged-1x3": (nudged(strength=1.0, chords=3), 1.0),  # Three iterations with A.
    "nudged-1-own": (nudged(strength=1.0, shared=None), 1.0),  # Each example has its own A.
    "centred-1": (nudged(beta=0.1, strength=1.0, inference=CHORDS), 1.0),
    "positive-1": (nudged(beta=1.0, sign="positive", strength=1.0, inference=CHORDS), 1.0),
    "negative-1": (nudged(beta=1.0, sign="negative", strength=1.0, inference=CHORDS), 1.0),
}
CHANNELS = {"resnet10": 64, "resnet18": 64}


def energy_of(rule: str, loss: str, depth: int) -> jpc.PCEnergy:
    return jpc.PCEnergy(LOSSES[loss], [1.0] * (depth - 1) + [RULES[rule][1]])


def gradient_of(rule: str, loss: str):
    def gradient(layers, x, y):
        nodes, clamps = start(layers, x, y)
        inferred = RULES[rule][0](energy_of(rule, loss, len(layers)), layers, nodes, clamps)
        energy, lesson = inferred.lesson
        return eqx.filter_grad(energy)(layers, lesson, clamps)

    return gradient


@eqx.filter_jit
def regime(rule: str, loss: str, layers, x, y) -> dict:
    problem = energy_of(rule, loss, len(layers)), layers, *start(layers, x, y)
    found = jpc.measure_regime(*problem, inference=RULES[rule][0])
    kept = ("mean_eigenvalue", "largest_eigenvalue", "mean_sensitivity", "angle", "relaxed")
    return {name: jnp.mean(found[name]) for name in (*kept, "successful")}


def train(epoch, network: str, train_data, test_data, seed: int, args) -> dict:
    """One run, with the regime after the first and the last epoch."""
    make = jpc.make_cnn(
        jr.key(seed), (3, 32, 32), 10, size=network, channels=CHANNELS.get(network, 128)
    )
    layers = [jpc.Layer(layer) for layer in make]
    state = args.optim.init(eqx.filter(layers, eqx.is_inexact_array))
    key, accuracies, times = jr.key(1000 + seed), [], []
    for _ in range(args.epochs):
        begin, (key, now) = time.perf_counter(), jr.split(key)
        layers, state = epoch(train_data, now, layers, state)
        jax.block_until_ready(eqx.filter(layers, eqx.is_array))
        times.append(time.perf_counter() - begin)
        accuracies.append(float(accuracy(layers, *test_data)))
    return dict(accuracies=accuracies, seconds=statistics.median(times[1:] or times), end=layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=["vgg5"])
    parser.add_argument("--rules", nargs="+", default=["backprop", "nudged-1"], choices=RULES)
    parser.add_argument("--losses", nargs="+", default=["mse"], choices=LOSSES)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--limit", type=int, default=None, help="images of training")
    parser.add_argument("--no-regime", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("rules.jsonl"))
    args = parser.parse_args()
    print(device())
    data, test = load()
    data = jax.tree.map(lambda x: x[: args.limit], data)
    args.optim = optimiser(args.epochs, len(data[0]) // args.batch)
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    runs = {tuple(run["cell"]): run for run in map(json.loads, lines)}
    for network in args.networks:
        for loss in args.losses:
            for rule in args.rules:
                epoch = make_epoch(gradient_of(rule, loss), args.optim, args.batch)
                for seed in range(args.seeds):
                    cell = (network, loss, rule, args.epochs, seed)
                    if cell in runs:
                        continue
                    run = train(epoch, network, data, test, seed, args)
                    layers = run.pop("end")
                    if not args.no_regime:
                        batch = jax.tree.map(lambda x: x[:256], data)
                        found = regime(rule, loss, layers, *batch)
                        run |= {name: float(x) for name, x in found.items()}
                    runs[cell] = run | dict(cell=cell)
                    with args.out.open("a") as file:
                        file.write(json.dumps(runs[cell]) + "\n")
                show(runs, network, loss, rule, args.epochs)


def show(runs: dict, network: str, loss: str, rule: str, epochs: int) -> None:
    mine = [run for cell, run in runs.items() if cell[:4] == (network, loss, rule, epochs)]
    base = [r for cell, r in runs.items() if cell[:4] == (network, loss, "backprop", epochs)]
    ends = [run["accuracies"][-1] for run in mine]
    spread = statistics.stdev(ends) if len(ends) > 1 else 0.0
    seconds = statistics.median(run["seconds"] for run in mine)
    cost = seconds / statistics.median(run["seconds"] for run in base) if base else float("nan")
    mean = lambda name: statistics.fmean(run.get(name, float("nan")) for run in mine)
    cells = [
        f"{network} {loss} {rule:12s} {epochs} epochs",
        f"{statistics.fmean(ends):5.2f} +- {spread:4.2f} % ({len(ends)})",
        f"{seconds:6.2f} s {cost:5.2f} x",
        f"S {mean('mean_eigenvalue'):8.2f}, largest {mean('largest_eigenvalue'):8.1f}",
        f"tr A / n {mean('mean_sensitivity'):9.1f}",
        f"angle {mean('angle'):5.1f}, relaxed {mean('relaxed'):5.2f}",
        f"certified {mean('successful'):4.0%}",
    ]
    print(" | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
