"""How exact is exact inference in deep networks, and does training survive it?

    JPC_DATA_DIR=... python benchmarks/deep.py [--networks vgg5 vgg7 resnet] [--epochs 0 1 10]
    JPC_DATA_DIR=... python benchmarks/deep.py --train [--networks vgg5] [--epochs 3]
    ... [--out FILE.csv]

The first form: networks on CIFAR-10, trained by backpropagation for so many epochs; for each loss
and output precision the error of the learning gradient of a batch against float64 after some
chords, and for how many examples the certificate holds, with the device's own products of
matrices and with precise ones. The reference is `Equilibrium(rtol=1e-6)` in float64, with the
fraction of examples that converged there. The second form: test accuracy after each epoch of
training at equilibrium, and the time of an epoch relative to backpropagation.

`vgg5-average` is a VGG5 with average instead of max pooling, and so on.
`default` is `Equilibrium()` as a plain call has it, with steps of single examples; `fit` the same
as `jpc.fit` has it, without.
"""

import argparse
import functools as ft
import math
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from common import device, in_parallel, relative_error, start, to_double, write_rows

import jpc
import jpc.data

LOSSES = {"mse": jpc.squared_error, "ce": jpc.cross_entropy}
CHORDS = {f"{k}": jpc.Equilibrium(chords=k, max_steps=0, throw=False) for k in (1, 2, 3, 5)}
DEFAULT = {"default": jpc.Equilibrium(throw=False)}
FIT = {"fit": jpc.Equilibrium(max_steps=0, throw=False)}


# --- networks ---


class Block(eqx.Module):
    """A residual block: normalisation, activation and convolution, twice."""

    norms: list
    convs: list
    project: eqx.nn.Conv2d | None
    stride: int = eqx.field(static=True)

    def __init__(self, key, before: int, after: int, stride: int):
        keys = jr.split(key, 3)
        conv = ft.partial(eqx.nn.Conv2d, padding=1, use_bias=False)
        self.norms = [eqx.nn.GroupNorm(8, before), eqx.nn.GroupNorm(8, after)]
        self.convs = [
            conv(before, after, 3, stride, key=keys[0]),
            conv(after, after, 3, 1, key=keys[1]),
        ]
        same = before == after and stride == 1
        self.project = None if same else eqx.nn.Conv2d(before, after, 1, stride, key=keys[2])
        self.stride = stride

    def __call__(self, z):
        skip = z if self.project is None else self.project(z)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            z = conv(jax.nn.gelu(norm(z)))
        return skip + z


def make_resnet(key, channels: int) -> list:
    """A convolution, six residual blocks, each a layer, and a linear map of mean activities."""
    keys = jr.split(key, 8)
    widths = [channels, channels, 2 * channels, 2 * channels, 4 * channels, 4 * channels]
    layers: list = [eqx.nn.Conv2d(3, channels, 3, padding=1, key=keys[0])]
    for k, (i, width) in zip(keys[1:], enumerate(widths), strict=False):
        stride = 2 if i > 0 and width > widths[i - 1] else 1
        layers.append(Block(k, widths[max(i - 1, 0)], width, stride))
    norm, linear = eqx.nn.GroupNorm(8, widths[-1]), eqx.nn.Linear(widths[-1], 10, key=keys[-1])
    pool = eqx.nn.Lambda(lambda z: jnp.mean(jax.nn.gelu(z), axis=(1, 2)))
    return [*layers, eqx.nn.Sequential([norm, pool, linear])]


def make_network(name: str, channels: int, key) -> list[jpc.Layer]:
    size, average, _ = name.partition("-average")
    pool = "average" if average else "max"
    make = lambda: jpc.make_cnn(key, (3, 32, 32), 10, size=size, channels=channels, pool=pool)
    model = make_resnet(key, channels // 2) if name == "resnet" else make()
    return [jpc.Layer(layer) for layer in model]


def pc(loss: str, depth: int, precision) -> jpc.PCEnergy:
    return jpc.PCEnergy(LOSSES[loss], [1.0] * (depth - 1) + [precision])


# --- gradients ---


def backprop(loss: str, layers, x, y):
    def mean_loss(layers):
        predict = jax.vmap(lambda z: jpc.feedforward(layers, z)[-1])
        return jnp.mean(jax.vmap(LOSSES[loss])(y, predict(x)))

    return eqx.filter_grad(mean_loss)(layers)


def infer(method, loss: str, precision, layers, x, y):
    """The learning gradient at the end of inference, and which examples have converged."""
    nodes, clamps = start(layers, x, y)
    inferred = method(pc(loss, len(layers), precision), layers, nodes, clamps)
    energy, lesson = inferred.lesson
    gradient = eqx.filter_grad(energy)(layers, lesson, clamps)
    return gradient, jnp.mean(inferred.result == jpc.RESULTS.successful), inferred.stats["steps"]


# --- training ---


def load() -> tuple:
    """CIFAR-10 on the device, with labels as one-hot vectors."""
    data = jpc.data.load("cifar10", download=False)
    pair = lambda x, y: (jnp.asarray(x), jax.nn.one_hot(jnp.asarray(y), 10))
    return pair(*data.train), pair(*data.test)


def make_epoch(gradient, optim, batch: int):
    """A compiled function of data, a key and parameters: one epoch with flips and crops."""

    @eqx.filter_jit(donate="all-except-first")
    def epoch(fixed, key, layers, state):
        (images, labels), given = fixed
        arrays, static = eqx.partition(layers, eqx.is_inexact_array)
        order_key, *keys = jr.split(key, 1 + len(images) // batch)
        order = jr.permutation(order_key, len(images))[: len(keys) * batch].reshape(-1, batch)

        def step(carry, item):
            arrays, state = carry
            key, rows = item
            x, y = jpc.data.augment(key, images[rows]), labels[rows]
            grads = gradient(*given, eqx.combine(arrays, static), x, y)
            updates, state = optim.update(grads, state, arrays)
            return (eqx.apply_updates(arrays, updates), state), None

        carry = (arrays, state)
        (arrays, state), _ = jax.lax.scan(step, carry, (jnp.stack(keys), order))
        return eqx.combine(arrays, static), state

    return epoch


@eqx.filter_jit
def accuracy(layers, images, labels):
    predict = jax.vmap(lambda z: jpc.feedforward(layers, z)[-1])
    predicted = jax.lax.map(predict, images.reshape(-1, 500, *images.shape[1:]))
    right = jnp.argmax(predicted.reshape(labels.shape), 1) == jnp.argmax(labels, 1)
    return 100 * jnp.mean(right)


def optimiser(epochs: int, steps: int) -> optax.GradientTransformation:
    whole = epochs * steps
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, max(whole // 20, 1), whole)
    return optax.adamw(schedule, weight_decay=5e-4)


@ft.cache
def make_training(gradient, epochs: int, steps: int, batch: int):
    optim = optimiser(epochs, steps)
    return optim, make_epoch(gradient, optim, batch)


def run(gradient, given: tuple, layers, data, epochs: int, batch: int):
    """The layers after each epoch, and how long it took."""
    optim, epoch = make_training(gradient, epochs, len(data[0]) // batch, batch)
    state, key = optim.init(eqx.filter(layers, eqx.is_inexact_array)), jr.key(1)
    layers = jax.tree.map(lambda a: a + 0 if eqx.is_array(a) else a, layers)  # To be donated.
    for _ in range(epochs):
        begin, (key, now) = time.perf_counter(), jr.split(key)
        layers, state = epoch((data, given), now, layers, state)
        jax.block_until_ready(eqx.filter(layers, eqx.is_array))
        yield layers, time.perf_counter() - begin


# --- the two tables ---

ERRORS = ["network", "epochs", "loss", "precision", "matmul", "iterations", "error"]
ERRORS += ["certified", "reference"]
TRAINING = ["network", "loss", "rule", "precision", "epoch", "accuracy", "time"]


@ft.cache
def compiled(kind: str, loss: str):
    """One program for all precisions, and for a network of any age."""
    methods = CHORDS | FIT | DEFAULT
    if kind == "exact":
        return eqx.filter_jit(
            ft.partial(infer, jpc.Equilibrium(rtol=1e-6, max_steps=300, throw=False), loss)
        )

    def every(precision, layers, x, y):
        return {k: infer(m, loss, precision, layers, x, y) for k, m in methods.items()}

    return eqx.filter_jit(every)


def show_errors(name: str, age: int, layers, batch, loss: str, args) -> None:
    precisions = args.precisions

    def measure(kind: str):
        fn = compiled(kind, loss)
        if kind == "exact":
            with jax.enable_x64(True):
                given = to_double((layers, *batch))
                return [fn(jnp.asarray(p, jnp.float64), *given) for p in precisions]
        with jax.default_matmul_precision(kind):
            return [fn(jnp.asarray(p, jnp.float32), layers, *batch) for p in precisions]

    kinds = {kind: kind for kind in ("exact", "default", "highest")}
    found, rows = in_parallel(measure, kinds), []
    for i, p in enumerate(precisions):
        reference, share, _ = found["exact"][i]
        print(f"\n{name} after {age} epochs, {loss}, output precision {p:g}", end=" ")
        print(f"(float64: {float(share):4.0%} converged)")
        for kind, label in (("default", "as it is"), ("highest", "precise")):
            cells = []
            for k, (gradient, okay, _) in found[kind][i].items():
                error, _ = relative_error(gradient, reference)
                cells.append(f"{k}: {error:7.1e} {float(okay):4.0%}")
                rows.append((name, age, loss, p, kind, k, float(error), float(okay), float(share)))
            steps = found[kind][i]["default"][2]
            print(f"  {label:9s} {' | '.join(cells)} | steps {int(jnp.max(steps))}", flush=True)
    write_rows(args.out, ERRORS, rows)


def show_training(name: str, layers, train, test, args) -> None:
    methods = {"backpropagation": None, "3 chords": CHORDS["3"], **FIT, **DEFAULT}
    for loss in args.losses:
        base = math.nan
        for label in ("backpropagation", *args.methods):
            method = methods[label]
            gradient = ft.partial(backprop, loss) if method is None else teach(method, loss)
            for p in [1.0] if method is None else args.precisions:
                given = () if method is None else (jnp.asarray(p),)
                ends = run(gradient, given, layers, train, args.epochs[-1], args.batch)
                ends = [(float(accuracy(layers, *test)), seconds) for layers, seconds in ends]
                accuracies, times = zip(*ends, strict=True)
                seconds = min(times[1:], default=math.nan)  # The first compiles.
                base = seconds if method is None else base
                percent = " ".join(f"{a:5.1f}" for a in accuracies)
                cost = f"{seconds:6.2f} s an epoch, {seconds / base:5.2f} x"
                print(f"{name} {loss} {label:16s} p = {p:<6g} {percent} %  {cost}", flush=True)
                rows = [(name, loss, label, p, i, a) for i, a in enumerate(accuracies, start=1)]
                write_rows(args.out, TRAINING, [(*row, seconds / base) for row in rows])


@ft.cache
def teach(method, loss: str):
    return lambda *given: infer(method, loss, *given)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--networks", nargs="+", default=["vgg5", "vgg7", "resnet"])
    parser.add_argument("--losses", nargs="+", default=list(LOSSES), choices=LOSSES)
    parser.add_argument("--precisions", type=float, nargs="+", default=[1e-3, 1e-2, 0.1, 1.0])
    methods = ["3 chords", *FIT, *DEFAULT]
    parser.add_argument("--methods", nargs="+", default=methods[:2], choices=methods)
    parser.add_argument("--out", type=Path, help="a csv to add the table to")
    parser.add_argument("--epochs", type=int, nargs="+", default=[0, 1, 10])
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--examples", type=int, default=64, help="in the batch of gradients")
    parser.add_argument("--limit", type=int, default=None, help="images of training")
    args = parser.parse_args()
    print(device())
    train, test = load()
    train = jax.tree.map(lambda x: x[: args.limit], train)
    for name in args.networks:
        layers = make_network(name, args.channels, jr.key(0))
        if args.train:
            show_training(name, layers, train, test, args)
            continue
        batch = jax.tree.map(lambda x: x[: args.examples], train)
        for loss in args.losses:
            if 0 in args.epochs:
                show_errors(name, 0, layers, batch, loss, args)
            ends = run(ft.partial(backprop, loss), (), layers, train, max(args.epochs), args.batch)
            for count, (trained, _) in enumerate(ends, start=1):
                if count in args.epochs:
                    show_errors(name, count, trained, batch, loss, args)


if __name__ == "__main__":
    main()
