"""Incremental predictive coding against predictive coding, on Fashion-MNIST.

    JPC_DATA_DIR=... python benchmarks/ipc.py [--size quick|full] [--seeds 3] [--no-decay]
        [--only PC iPC] [--out FILE.csv]

The same network (784-128-128-10, gelu, biases, squared error), the same 600 batches of 64 in one
pass, the same number of steps of inference: 20 of gradient descent on each example's own energy,
from a feedforward pass. The weights learn by Adam, by default with a learning rate that goes down
to zero by a cosine. Each method gets the step size and the learning rate, of the same grid, that
are best on 5,000 validation images, with a seed of its own. Then both train with other seeds and
are tested on all 10,000 test images.
"""

import argparse
import functools as ft
import itertools
import statistics
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

BATCH, STEPS = 64, 20
STEP_SIZES = (0.1, 0.3, 0.5)
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)


def pc(step_size: float) -> Callable:
    return ft.partial(jpc.make_pc_step, inference=jpc.Descent(step_size, STEPS))


def ipc(step_size: float) -> Callable:
    return ft.partial(jpc.make_ipc_step, activity_optim=optax.sgd(step_size), steps=STEPS)


METHODS = {"PC": (pc, 1), "iPC": (ipc, STEPS)}  # And how many times the weights move in a batch.


def make_optim(moves: int, decay: bool) -> optax.GradientTransformation:
    """Adam with the learning rate in its state, so that all of them share a program."""
    adam = optax.inject_hyperparams(optax.adam)(learning_rate=1.0)
    schedule = optax.cosine_decay_schedule(1.0, moves) if decay else optax.constant_schedule(1.0)
    return optax.chain(adam, optax.scale_by_schedule(schedule))


def train(step: Callable, optim, rate: float, seed: int, data, test) -> tuple[float, float]:
    """The accuracy in percent on `test` after one pass, NaN if it diverged; and the time."""
    init, order = jr.split(jr.key(seed))
    model = jpc.make_mlp(init, 784, 128, 3, 10, "gelu", use_bias=True)
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    opt_state[0].hyperparams["learning_rate"] = jnp.asarray(rate)
    state = dict(model=model, skip_model=None, optim=optim, opt_state=opt_state)
    how = dict(epochs=1, batch_size=BATCH, key=order, classes=10, progress=False)
    how |= dict(test=test, evaluate=jpc.evaluate_discriminative)
    begin = time.perf_counter()
    try:
        acc = jpc.fit(step, state, data, **how).history[-1]["test_acc"]
    except RuntimeError as error:
        if "finite" not in str(error) and "diverged" not in str(error):
            raise
        acc = np.nan
    return acc, time.perf_counter() - begin


def choose(
    method: str, optim, data, validation, out: Path | None, decay: bool
) -> tuple[Callable, float, float]:
    """The step, its size and the learning rate that are best; prints all of them."""
    make, _ = METHODS[method]
    steps, scores = {size: make(size) for size in STEP_SIZES}, {}
    for size, rate in itertools.product(STEP_SIZES, RATES):
        scores[size, rate], _ = train(steps[size], optim, rate, 1_000, data, validation)
    for (size, rate), score in scores.items():
        named = dict(method=method, decay=decay, step_size=size, rate=rate)
        record(out, **named, seed="validation", accuracy=score)
    for size in STEP_SIZES:
        row = " | ".join(f"{scores[size, rate]:.1f}" for rate in RATES)
        print(f"| {method} | {size:g} | {row} |", flush=True)
    size, rate = max(scores, key=lambda setting: np.nan_to_num(scores[setting]))
    return steps[size], size, rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=["quick", "full"], default="full")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--decay", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--only", nargs="+", default=list(METHODS), choices=METHODS)
    add_out(parser)
    args = parser.parse_args()
    batches = {"quick": 20, "full": 600}[args.size]
    loaded = jpc.data.load("fashion-mnist", flatten=True, validation=5_000)
    data = tuple(array[: batches * BATCH] for array in loaded.train)
    where = f"JAX {jax.__version__} on {jax.devices()[0].device_kind}"
    print(f"{batches} batches of {BATCH}, cosine decay: {args.decay}, {where}\n")
    print("| validation % | step size | " + " | ".join(f"{rate:g}" for rate in RATES) + " |")
    print("|---|---|" + "---|" * len(RATES))
    optims = {name: make_optim(batches * m, args.decay) for name, (_, m) in METHODS.items()}
    given = data, loaded.validation, args.out, args.decay
    best = {name: choose(name, optims[name], *given) for name in args.only}
    print(f"\n| | step size, learning rate | test %, {args.seeds} seeds | mean | s |")
    print("|---|---|---|---|---|")
    for name, (step, size, rate) in best.items():
        seeds = range(args.seeds)
        runs = [train(step, optims[name], rate, seed, data, loaded.test) for seed in seeds]
        accs, times = zip(*runs, strict=True)
        named = dict(method=name, decay=args.decay, step_size=size, rate=rate)
        for seed, acc in enumerate(accs):
            record(args.out, **named, seed=seed, accuracy=acc)
        each, mean = ", ".join(f"{acc:.2f}" for acc in accs), statistics.mean(accs)
        print(f"| {name} | {size:g}, {rate:g} | {each} | {mean:.2f} | {min(times):.0f} |")


if __name__ == "__main__":
    main()
