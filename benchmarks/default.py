"""What does training cost with `Equilibrium()` as it is, in `fit`?

    JPC_DATA_DIR=... python benchmarks/default.py [--hidden 3 5 10] [--rounds 9] [--steps 100]
        [--methods "backpropagation" "Equilibrium()"] [--out FILE.csv]

A tanh network 784-300xH-10 learns MNIST in batches of 64, by backpropagation and by each method.
First each network is trained for 300 steps by its own rule, so that it is not the one of the
initialisation that is timed. Then the rules take turns, 100 steps each, on the same batches. The
table has medians, and the share of examples whose certificate holds during the last turn.
"""

import argparse
import functools as ft
import statistics
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import optax
from common import add_out, record

import jpc
import jpc.data

BATCH, WARM_UP = 64, 300
METHODS = {
    "backpropagation": jpc.Backprop(),
    "Equilibrium()": jpc.Equilibrium(),
    "chords=2, max_steps=0": jpc.Equilibrium(chords=2, max_steps=0),
    "chords=3, max_steps=0": jpc.Equilibrium(chords=3, max_steps=0),
}


def begin(hidden: int) -> dict[str, Any]:
    model = jpc.make_mlp(jr.key(0), 784, 300, hidden + 1, 10, "tanh", use_bias=True)
    optim = optax.adam(1e-3)
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    return dict(model=model, optim=optim, opt_state=opt_state)


def train(method: jpc.AbstractInference, state: dict, data: tuple, turn: int) -> jpc.Fitted:
    step = ft.partial(jpc.make_pc_step, inference=method)
    named: Any = dict(epochs=1, batch_size=BATCH, key=jr.key(turn), progress=False, classes=10)
    return jpc.fit(step, state, data, **named)


def main(hidden: list[int], methods: list[str], rounds: int, steps: int, out: Path | None) -> None:
    x, y = jpc.data.load("mnist", flatten=True, normalise=True).train
    some = lambda first, count: (
        x[first * BATCH :][: count * BATCH],
        y[first * BATCH :][: count * BATCH],
    )
    print(f"{jax.devices()[0].device_kind}, batches of {BATCH}, {rounds} turns of {steps} steps")
    print(f"{'hidden layers':>13}  {'method':<22} {'ms a step':>9} {'ratio':>6} {'converged':>9}")
    for depth in hidden:
        states = {}
        for name in methods:  # The first call compiles; a turn is as long as it is later.
            states[name] = train(METHODS[name], begin(depth), some(0, steps), 0).state
            for i in range(-(-WARM_UP // steps)):
                states[name] = train(METHODS[name], states[name], some(i * steps, steps), i).state
        times: dict[str, list[float]] = {name: [] for name in methods}
        shares = {}
        for turn in range(rounds):
            data = some((turn * steps) % (len(x) // BATCH - steps), steps)
            for name in methods:
                fitted = train(METHODS[name], states[name], data, turn)
                states[name], told = fitted.state, fitted.history[0]
                times[name].append(1e3 * told["seconds"] / steps)
                shares[name] = told.get("converged")
        medians = {name: statistics.median(taken) for name, taken in times.items()}
        for name, median in medians.items():
            ratio, share = median / medians[methods[0]], shares[name]
            record(out, hidden=depth, method=name, ms=median, ratio=ratio, converged=share)
            told = "" if share is None else f"{100 * share:.0f} %"
            print(f"{depth:>13}  {name:<22} {median:>9.3f} {ratio:>6.2f} {told:>9}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, nargs="+", default=[3, 5, 10])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=100)
    add_out(parser)
    given = parser.parse_args()
    main(given.hidden, given.methods, given.rounds, given.steps, given.out)
