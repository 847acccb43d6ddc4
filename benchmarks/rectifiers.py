"""How close do chords get to equilibrium in a network with rectifiers, and at what cost?

    JPC_DATA_DIR=... python benchmarks/rectifiers.py [--acts relu leaky_relu] [--hidden 3 10]
        [--batches 10] [--out FILE.csv]

Networks 784-300xH-10 for MNIST, batch 64, at initialisation and trained for 300 steps by
backpropagation. Of each method: the time of a step relative to backpropagation in one scan over
batches, with a matrix of another batch, the error of the learning gradient against float64, and
for how many examples the certificate holds. (There are many equilibria: where a method finds
another one than the reference, that counts as an error.)
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
from common import (
    add_out,
    backprop,
    batches,
    device,
    interleaved,
    network,
    record,
    relative_error,
    start,
    to_double,
    train,
)

import jpc

METHODS = {f"{k} chords": jpc.Equilibrium(chords=k, max_steps=0, throw=False) for k in (2, 3, 5)}
METHODS["as in fit"] = jpc.Equilibrium(max_steps=0, throw=False)
METHODS["by itself"] = jpc.Equilibrium(throw=False)
ENERGY = jpc.PCEnergy()


def infer(method, layers, x, y):
    """The learning gradient, and which examples have converged."""
    nodes, clamps = start(layers, x, y)
    inferred = method(ENERGY, layers, nodes, clamps)
    local, lesson = inferred.lesson
    return eqx.filter_grad(local)(layers, lesson, clamps), inferred.result


def exact(layers, batch):
    with jax.enable_x64(True):
        method = jpc.Equilibrium(rtol=1e-6, throw=False)
        return eqx.filter_jit(infer)(method, *to_double((layers, *batch)))[0]


def show(layers, data, args: argparse.Namespace, **named) -> None:
    batch, other = ([x[i] for x in data] for i in (0, 1))
    reference = exact(layers, batch)
    prepare = lambda method: method.prepare(ENERGY, layers, *start(layers, *other))
    methods = {name: prepare(method) for name, method in METHODS.items()}
    steps = {"backpropagation": train(backprop, layers, *data)}
    for name, method in methods.items():
        gradient = lambda *given, m=method: infer(m, *given)[0]
        steps[name] = train(gradient, layers, *data)
    times = interleaved(steps, repeats=3)
    for name, method in methods.items():
        gradient, result = eqx.filter_jit(infer)(method, layers, *batch)
        error, _ = relative_error(gradient, reference)
        okay = float(jnp.mean(result == jpc.RESULTS.successful))
        ratio = times[name] / times["backpropagation"]
        record(args.out, **named, method=name, ratio=ratio, error=error, certified=okay)
        print(f"  {name:12s} {ratio:8.2f} x   error {error:7.1e}   {okay:4.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--acts", nargs="+", default=["relu", "leaky_relu"])
    parser.add_argument("--hidden", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--batches", type=int, default=10)
    add_out(parser)
    args = parser.parse_args()
    print(device())
    x, y = batches(64, 300)
    some = x[: args.batches], y[: args.batches]
    for act in args.acts:
        for hidden in args.hidden:
            new = network(hidden, act=act)
            ages = {"at initialisation": new, "trained": train(backprop, new, x, y)()}
            for age, layers in ages.items():
                print(f"\n{act}, H = {hidden}, {age}")
                show(layers, some, args, act=act, hidden=hidden, network=age)


if __name__ == "__main__":
    main()
