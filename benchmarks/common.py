"""What the benchmarks share: data, networks, training, and interleaved timing."""

import argparse
import csv
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import jpc
import jpc.data
from jpc._layer import feedforward_batch

BATCH = 64


def mnist() -> tuple[np.ndarray, np.ndarray]:
    """MNIST's training set, or random data of the same shape where `jpc.data` does not find all
    four files of MNIST, those of the test set too, in `JPC_DATA_DIR/mnist` (or in its cache).
    """
    try:
        return jpc.data.load("mnist", normalise=False, flatten=True, download=False).train
    except FileNotFoundError:
        print("No MNIST (all four files of it) in JPC_DATA_DIR: random data instead.")
        rng = np.random.default_rng(0)
        return rng.random((60_000, 784), np.float32), rng.integers(0, 10, 60_000)


def batches(size: int, count: int) -> tuple[jax.Array, jax.Array]:
    """`count` batches of images and one-hot labels, on the device."""
    images, labels = mnist()
    take = np.arange(size * count) % len(images)
    images = jnp.asarray(images[take].reshape(count, size, 784))
    return images, jax.nn.one_hot(labels[take].reshape(count, size), 10, dtype=jnp.float32)


def network(hidden: int, width: int = 300, act: str = "tanh") -> list[jpc.Layer]:
    model = jpc.make_mlp(jr.key(0), 784, width, hidden + 1, 10, act)
    return [jpc.Layer(layer) for layer in model]


def backprop(layers, x, y):
    def loss(layers):
        predict = jax.vmap(lambda z: jpc.feedforward(layers, z)[-1])
        return jnp.mean(jax.vmap(jpc.squared_error)(y, predict(x)))

    return eqx.filter_grad(loss)(layers)


def start(layers, x, y):
    return jpc.clamp(feedforward_batch(layers, x)[:-1], y, x)


def in_states(inference: jpc.AbstractInference):
    """The learning gradient and the energy at the end of inference."""

    def infer(layers, x, y):
        nodes, clamps = start(layers, x, y)
        energy = jpc.PCEnergy()
        inferred = inference(energy, layers, nodes, clamps)
        local, lesson = inferred.lesson or (energy, inferred.nodes)
        gradient = eqx.filter_grad(local)(layers, lesson, clamps)
        return gradient, energy(layers, inferred.nodes, clamps)

    return infer


def predictive_coding(inference: jpc.AbstractInference):
    """As `in_states`, the gradient alone: compiled code leaves the energy out."""
    return lambda *given: in_states(inference)(*given)[0]


def train_in_groups(method: jpc.Equilibrium, layers, images, labels, group: int = 10):
    """As `train` with `Equilibrium`, but its matrix is made once for every `group` batches."""
    count = len(images) // group * group
    optim, static = optax.adam(1e-3), eqx.partition(layers, eqx.is_inexact_array)[1]
    arrays = eqx.filter(layers, eqx.is_inexact_array)

    def step(method, carry, batch):
        arrays, state = carry
        gradient = predictive_coding(method)(eqx.combine(arrays, static), *batch)
        updates, state = optim.update(gradient, state, arrays)
        return (eqx.apply_updates(arrays, updates), state), None

    def several(carry, group):
        layers = eqx.combine(carry[0], static)
        first = start(layers, *jax.tree.map(lambda x: x[0], group))
        prepared = method.prepare(jpc.PCEnergy(), layers, *first)
        return jax.lax.scan(lambda c, b: step(prepared, c, b), carry, group)

    @jax.jit
    def epoch(arrays, data):
        data = jax.tree.map(lambda x: x[:count].reshape(-1, group, *x.shape[1:]), data)
        return jax.lax.scan(several, (arrays, optim.init(arrays)), data)[0][0]

    return lambda: eqx.combine(epoch(arrays, (images, labels)), static)


def train(gradient, layers, images, labels, optim=None):
    """A compiled function of nothing: one epoch of Adam in one scan, returning the layers."""
    optim = optax.adam(1e-3) if optim is None else optim
    arrays, static = eqx.partition(layers, eqx.is_inexact_array)

    def step(carry, batch):
        arrays, state = carry
        layers = eqx.combine(arrays, static)
        updates, state = optim.update(gradient(layers, *batch), state, arrays)
        return (eqx.apply_updates(arrays, updates), state), None

    @jax.jit
    def epoch(arrays, images, labels):
        return jax.lax.scan(step, (arrays, optim.init(arrays)), (images, labels))[0][0]

    return lambda: eqx.combine(epoch(arrays, images, labels), static)


def in_parallel(call: Callable, functions: dict) -> dict:
    """`call` of each function, at once: the first calls of many spend their time compiling."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(functions, pool.map(call, functions.values()), strict=True))


def interleaved(functions: dict, repeats: int = 5) -> dict[str, float]:
    """The median time of each function in seconds, taken in turns after a first call."""
    in_parallel(lambda f: jax.block_until_ready(eqx.filter(f(), eqx.is_array)), functions)
    times = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            begin = time.perf_counter()
            jax.block_until_ready(eqx.filter(function(), eqx.is_array))
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def to_double(tree):
    """Inside of `jax.enable_x64(True)`: its arrays in float64."""
    double = lambda a: jnp.asarray(np.asarray(a), jnp.float64) if eqx.is_array(a) else a
    return jax.tree.map(double, tree)


def relative_error(one, other) -> tuple[float, float]:
    """Of two gradients: over all layers together, and of the worst layer."""
    arrays = lambda tree: jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    norm = lambda xs: float(np.sqrt(sum(np.sum(np.square(x)) for x in xs)))
    pairs = [
        (np.asarray(a, np.float64), np.asarray(b, np.float64))
        for a, b in zip(arrays(one), arrays(other), strict=True)
    ]
    worst = max(norm([a - b]) / norm([b]) for a, b in pairs)
    return norm([a - b for a, b in pairs]) / norm([b for _, b in pairs]), worst


def device() -> str:
    kind = jax.devices()[0]
    return f"{kind.device_kind} ({kind.platform}), JAX {jax.__version__}"


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="a csv to add the numbers to")


def record(path: Path | None, **row) -> None:
    """Adds one row to a csv, if there is one, and the device that it was measured on."""
    row |= dict(device=device())
    write_rows(path, list(row), [list(row.values())])


def write_rows(path: Path | None, names: Sequence[str], rows: Iterable[Sequence]) -> None:
    """Adds rows to a csv, if there is one; a new one begins with the names of its columns."""
    if path is None:
        return
    new = not path.exists()
    with path.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([names, *rows] if new else rows)
