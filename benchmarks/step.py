"""What does a training step cost with each method, relative to a step of backpropagation?

    JPC_DATA_DIR=... python benchmarks/step.py [--batches 50] [--hidden 3 5 10] [--quick]
        [--out FILE.csv]

All steps are the same but for the gradient: one scan over batches, Adam, float32.
"""

import argparse
from pathlib import Path

import diffrax as dfx
import optax
from common import (
    BATCH,
    add_out,
    backprop,
    batches,
    device,
    interleaved,
    network,
    predictive_coding,
    record,
    train,
    train_in_groups,
)

import jpc

CHORDS = {
    f"Equilibrium, {k} chords{note}": jpc.Equilibrium(
        chords=k, max_steps=0, throw=False, shared=shared
    )
    for k in (2, 3)
    for note, shared in (("", 4), (", S of each", None))
}
OTHERS = {
    "Equilibrium, default": jpc.Equilibrium(throw=False),
    "Descent, 20 steps of 0.1": jpc.Descent(optax.sgd(0.1), 20, throw=False),
    "Heun, T=20 (the paper's defaults)": jpc.GradientFlow(
        controller=dfx.PIDController(rtol=1e-3, atol=1e-3), throw=False
    ),
}


def measure(
    hidden: int, width: int, size: int, count: int, methods: dict, out: Path | None
) -> None:
    layers, data = network(hidden, width), batches(size, count)
    steps = {"backpropagation": train(backprop, layers, *data)}
    for name, method in methods.items():
        steps[name] = train(predictive_coding(method), layers, *data)
    for k in (2, 3):
        method = jpc.Equilibrium(chords=k, max_steps=0, throw=False)
        for group in (g for g in (10, 25) if count % g == 0):
            name = f"Equilibrium, {k} chords, S every {group} batches"
            steps[name] = train_in_groups(method, layers, *data, group=group)
    times = interleaved(steps)
    base = times["backpropagation"]
    print(f"\n{hidden} hidden layers of {width}, batch {size}")
    for name, seconds in times.items():
        named = dict(hidden=hidden, width=width, batch=size, method=name)
        record(out, **named, ms=1e3 * seconds / count, ratio=seconds / base)
        print(f"  {name:40s} {1e3 * seconds / count:9.4f} ms {seconds / base:7.2f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="Equilibrium only")
    parser.add_argument("--hidden", type=int, nargs="+", default=[3, 5, 10])
    add_out(parser)
    args = parser.parse_args()
    print(device())
    methods = CHORDS if args.quick else CHORDS | OTHERS
    for hidden in args.hidden:
        measure(hidden, 300, BATCH, args.batches, methods, args.out)
    measure(5, 300, 1024, args.batches, CHORDS, args.out)
    measure(5, 1024, BATCH, args.batches, CHORDS, args.out)


if __name__ == "__main__":
    main()
