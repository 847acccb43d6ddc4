"""Deep networks by muPC: do a hundred layers train, and does a learning rate transfer?

    JPC_DATA_DIR=... python benchmarks/mupc.py sweep [--size quick|full] [--plot mupc.png]
        [--types mupc ntp sp]
    JPC_DATA_DIR=... python benchmarks/mupc.py depth [--size quick|full] [--layers 30 100]
    JPC_DATA_DIR=... python benchmarks/mupc.py mnist [--size quick|full] [--normalise]
    python benchmarks/mupc.py gradient

All of them take --out FILE.csv. All networks have skip connections around their hidden layers, no
biases and squared error; batches are of 64, the optimiser of the weights is Adam. Unless it says
otherwise inference is the published one: as many steps of descent as there are layers, of 0.5 on
the batch's mean energy, so of 0.5 / 64 on each example's own.

- `sweep`: the loss on 2,000 test images of Fashion-MNIST after training, for two widths, two
  depths and six learning rates, with param_type "mupc", "ntp" and "sp" (tanh). The weights of the
  first two are drawn from N(0, 1).
- `depth`: 30 and 100 layers by flow, by descent and at equilibrium, on MNIST (tanh, width 64),
  and how many layers learn anything from the first batch, in single precision.
- `mnist`: 30 relu layers of 128, 900 batches, learning rate 0.1, tested on all of the test set.
- `gradient`: the cosine of the learning gradient at equilibrium and of backpropagation's.
"""

import argparse
import functools as ft
import time
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from common import add_out, record

import jpc
import jpc.data

BATCH = 64
MUPC = ft.partial(jpc.evaluate_discriminative, param_type="mupc")
TYPES = ("mupc", "ntp", "sp")
SHAPES = ((32, 8), (128, 8), (32, 30), (128, 30))
RATES = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
# The learning rate is in its state, so that all of them share a program.
OPTIM = optax.inject_hyperparams(optax.adam)(learning_rate=1.0)


def network(key, width: int, depth: int, act: str, param_type: str):
    drawn = "sp" if param_type == "sp" else "mupc"
    return jpc.make_residual_mlp(key, 784, width, depth, 10, act, param_type=drawn)


def descent(depth: int) -> jpc.Descent:
    return jpc.Descent(0.5 / BATCH, depth, throw=False)


def train(params, step: Callable, evaluate: Callable, rate: float, data, test) -> dict:
    """What `fit` has to say after one epoch; a loss of infinity if the numbers overflowed."""
    model, skip_model = params
    opt_state = OPTIM.init(eqx.filter(params, eqx.is_array))
    opt_state.hyperparams["learning_rate"] = jnp.asarray(rate)
    state = dict(model=model, skip_model=skip_model, optim=OPTIM, opt_state=opt_state)
    how = dict(epochs=1, batch_size=BATCH, classes=10, key=jr.key(1), progress=False)
    begin = time.perf_counter()
    try:
        last = jpc.fit(step, state, data, test=test, evaluate=evaluate, **how).history[-1]
    except RuntimeError as error:
        if "not finite" not in str(error):
            raise
        last = dict(loss=np.inf, test_loss=np.inf, test_acc=np.nan)
    return last | dict(seconds=time.perf_counter() - begin)


def load(name: str, batches: int, tests: int | None = None, *, normalise: bool = True):
    loaded = jpc.data.load(name, flatten=True, normalise=normalise)
    cut = lambda arrays, size: tuple(array[:size] for array in arrays)
    return cut(loaded.train, batches * BATCH), cut(loaded.test, tests)


def sweep(size: str, types: list[str], plot: Path | None, out: Path | None) -> None:
    batches = {"quick": 20, "full": 100}[size]
    data, test = load("fashion-mnist", batches, 2_000)
    print(f"Fashion-MNIST, {batches} batches of {BATCH}: test loss by learning rate\n")
    print("| | width | depth | " + " | ".join(f"{rate:g}" for rate in RATES) + " |")
    print("|---|---|---|" + "---|" * len(RATES))
    losses = {}
    for kind in types:
        for width, depth in SHAPES:
            step = ft.partial(jpc.make_pc_step, inference=descent(depth), param_type=kind)
            evaluate = ft.partial(jpc.evaluate_discriminative, param_type=kind)
            params = network(jr.key(0), width, depth, "tanh", kind)
            runs = [train(params, step, evaluate, rate, data, test) for rate in RATES]
            row = [float(run["test_loss"]) for run in runs]
            losses[kind, width, depth] = row
            for rate, loss in zip(RATES, row, strict=True):
                record(out, param_type=kind, width=width, depth=depth, rate=rate, loss=loss)
            shown = " | ".join(f"{loss:.3f}" if loss < 1e3 else f"{loss:.0e}" for loss in row)
            print(f"| {kind} | {width} | {depth} | {shown} |", flush=True)
    if plot is not None:
        draw(losses, plot, batches)


def draw(losses: dict, path: Path, batches: int) -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(1, len(TYPES), figsize=(9, 3), sharey=True, layout="constrained")
    for axis, kind in zip(axes, TYPES, strict=True):
        for i, (width, depth) in enumerate(SHAPES):
            row = np.minimum(losses[kind, width, depth], 1.0)
            colour, style = f"C{i % 2}", "-o" if depth == SHAPES[0][1] else "--s"
            label = f"width {width}, depth {depth}"
            axis.plot(RATES, row, style, color=colour, label=label, markersize=4)
        axis.set(xscale="log", yscale="log", title=kind, xlabel="learning rate")
    axes[0].set_ylabel(f"test loss after {batches} batches")
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=100)


def methods(depth: int) -> dict[str, dict]:
    """The flow takes as much time as the descent; 0.1 is the output's precision."""
    exact = jpc.Equilibrium(chords=2, max_steps=0, throw=False)
    return {
        f"Heun to t = {0.5 * depth:g}": dict(max_t1=0.5 * depth),
        f"{depth} steps of 0.5": dict(inference=descent(depth)),
        "equilibrium, 2 chords": dict(inference=exact, output_energy_scaling=0.1),
    }


def depth(size: str, depths: list[int], out: Path | None) -> None:
    batches = {"quick": 20, "full": 100}[size]
    data, test = load("mnist", batches)
    print(f"MNIST, {batches} batches of {BATCH}, width 64, tanh, learning rate 0.1\n")
    print("| layers | inference | reached | mean loss | test % | s |\n|---|---|---|---|---|---|")
    for layers in depths:
        params = network(jr.key(0), 64, layers, "tanh", "mupc")
        for name, options in methods(layers).items():
            step = ft.partial(jpc.make_pc_step, param_type="mupc", **options)
            last = train(params, step, MUPC, 0.1, data, test)
            row = f"{last['loss']:.3f} | {last['test_acc']:.1f} | {last['seconds']:.0f}"
            learn = reached(params, step, data)
            acc = last["test_acc"]
            record(out, layers=layers, inference=name, reached=learn, accuracy=acc)
            print(f"| {layers} | {name} | {learn} | {row} |", flush=True)


def reached(params, step: Callable, data) -> int:
    """How many layers have something to learn from the first batch."""
    x, y = data[0][:BATCH], jax.nn.one_hot(data[1][:BATCH], 10)
    opt_state = OPTIM.init(eqx.filter(params, eqx.is_array))
    model, skip_model = params
    new = step(model, OPTIM, opt_state, y, x, skip_model=skip_model, grad_norms=True)
    return int(jnp.sum(new["model_grad_norms"] > 0))


def mnist(size: str, normalise: bool, out: Path | None) -> None:
    batches = {"quick": 20, "full": 900}[size]
    data, test = load("mnist", batches, normalise=normalise)
    params = network(jr.key(0), 128, 30, "relu", "mupc")
    step = ft.partial(jpc.make_pc_step, param_type="mupc", inference=descent(30))
    last = train(params, step, MUPC, 0.1, data, test)
    record(out, normalise=normalise, batches=batches, accuracy=last["test_acc"])
    pixels = "normalised" if normalise else "in [0, 1]"
    print(f"MNIST, pixels {pixels}, {batches} batches of {BATCH}, 30 relu layers of 128")
    print(f"{last['test_acc']:.2f} % of {len(test[0])} test images ({last['seconds']:.0f} s)")


def gradient(out: Path | None) -> None:
    print("| width | cosine |\n|---|---|")
    for width in (4, 16, 64, 256):
        found = cosine(width)
        record(out, width=width, cosine=found)
        print(f"| {width} | {found:.3f} |", flush=True)


def cosine(width: int, depth: int = 8, size: int = 16) -> float:
    """Of the learning gradient at equilibrium and backpropagation's, all layers as one vector."""
    k_net, k_x, k_y = jr.split(jr.key(0), 3)
    model, skips = jpc.make_residual_mlp(k_net, 8, width, depth, 2, "tanh", param_type="mupc")
    layers = jpc.parameterise(model, skips, fan_ins=[8, *[width] * (depth - 1)], param_type="mupc")
    x, y = jr.normal(k_x, (size, 8)), jr.normal(k_y, (size, 2))
    nodes, clamps = jpc.clamp(jpc.feedforward_batch(layers, x)[:-1], y, x)
    energy = jpc.PCEnergy()
    inferred = jpc.Equilibrium()(energy, layers, nodes, clamps)
    lesson, states = inferred.lesson
    flat = lambda tree: jax.flatten_util.ravel_pytree(eqx.filter(tree, eqx.is_array))[0]
    one = flat(eqx.filter_grad(lesson)(layers, states, clamps))
    loss = lambda layers: jpc.mse_loss(jpc.feedforward_batch(layers, x)[-1], y)
    other = flat(eqx.filter_grad(loss)(layers))
    return float(one @ other / jnp.linalg.norm(one) / jnp.linalg.norm(other))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["sweep", "depth", "mnist", "gradient"])
    parser.add_argument("--size", choices=["quick", "full"], default="full")
    parser.add_argument("--layers", type=int, nargs="+", default=[30, 100])
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--types", nargs="+", default=TYPES, choices=TYPES)
    add_out(parser)
    parser.add_argument("--normalise", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    run = dict(
        sweep=lambda: sweep(args.size, args.types, args.plot, args.out),
        depth=lambda: depth(args.size, args.layers, args.out),
        mnist=lambda: mnist(args.size, args.normalise, args.out),
        gradient=lambda: gradient(args.out),
    )
    run[args.what]()


if __name__ == "__main__":
    main()
