"""What does exact inference cost where the output is an image?

    JPC_DATA_DIR=... python benchmarks/generative.py [--acts tanh gelu relu] [--batches 20]
        [--out FILE.csv]

Networks from labels to MNIST's images, 10-300-300-784, batch 64, at initialisation and trained by
backpropagation. For each precision of the output: the time of a step relative to backpropagation
in one scan over batches, the error of the learning gradient against float64, and for how many
examples the certificate holds. "Prepared" has its matrix made once, of another batch.
"""

import argparse
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from common import (
    add_out,
    backprop,
    batches,
    device,
    interleaved,
    record,
    relative_error,
    start,
    to_double,
    train,
)

import jpc

METHODS = {f"{k} iterations": jpc.Equilibrium(chords=k, max_steps=0, throw=False) for k in (3, 5)}
METHODS["as in fit"] = jpc.Equilibrium(max_steps=0, throw=False)
METHODS["default"] = jpc.Equilibrium(throw=False)


def energy(precision: float) -> jpc.PCEnergy:
    return jpc.PCEnergy(precision=[1.0, 1.0, precision])


def infer(method, precision, layers, labels, images):
    """The learning gradient, and which examples have converged."""
    nodes, clamps = start(layers, labels, images)
    inferred = method(energy(precision), layers, nodes, clamps)
    local, lesson = inferred.lesson
    return eqx.filter_grad(local)(layers, lesson, clamps), inferred.result


def prepare(method, precision, layers, labels, images):
    return method.prepare(energy(precision), layers, *start(layers, labels, images))


def exact(precision, layers, batch):
    with jax.enable_x64(True):
        method = jpc.Equilibrium(rtol=1e-6, max_steps=2000, throw=False)
        double = to_double((layers, *batch))
        return eqx.filter_jit(infer)(method, precision, *double)[0]


def show(layers, data, precision: float, out: Path | None, **named) -> None:
    """Data are batches of labels and of images."""
    batch, other = ([x[i] for x in data] for i in (0, 1))
    reference = exact(precision, layers, batch)
    methods = dict(METHODS)
    for name, method in METHODS.items():
        prepared = eqx.filter_jit(prepare)(method, precision, layers, *other)
        methods[f"{name}, prepared"] = prepared
    steps = {"backpropagation": train(backprop, layers, *data)}
    for name, method in methods.items():
        gradient = lambda *given, m=method: infer(m, precision, *given)[0]
        steps[name] = train(gradient, layers, *data)
    times = interleaved(steps, repeats=3)
    count, base = len(data[0]), times["backpropagation"]
    print(f"  {'backpropagation':26s} {1e3 * base / count:8.3f} ms")
    for name, method in methods.items():
        gradient, result = eqx.filter_jit(infer)(method, precision, layers, *batch)
        error, _ = relative_error(gradient, reference)
        okay = float(jnp.mean(result == jpc.RESULTS.successful))
        ratio = times[name] / base
        named |= dict(precision=precision, method=name)
        record(out, **named, ratio=ratio, error=error, certified=okay)
        print(f"  {name:26s} {ratio:8.2f} x   error {error:7.1e}   {okay:4.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--acts", nargs="+", default=["tanh", "gelu"])
    parser.add_argument("--precisions", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--batches", type=int, default=20)
    add_out(parser)
    args = parser.parse_args()
    print(device())
    images, labels = batches(64, 400)
    for act in args.acts:
        model = jpc.make_mlp(jr.key(0), 10, 300, 3, 784, act, use_bias=True)
        new = [jpc.Layer(layer) for layer in model]
        ages = {"at initialisation": new, "trained": train(backprop, new, labels, images)()}
        for age, layers in ages.items():
            for precision in args.precisions:
                print(f"\n{act}, {age}, output precision {precision:g}")
                data = labels[: args.batches], images[: args.batches]
                show(layers, data, precision, args.out, act=act, network=age)


if __name__ == "__main__":
    main()
