"""Predictive coding in its errors against predictive coding in its states.

    python benchmarks/epc.py reach [--out FILE.csv]
    JPC_DATA_DIR=... python benchmarks/epc.py mnist [--size quick|full] [--layers 20]
        [--out FILE.csv]

- `reach`: how far the first of 20 layers has moved (tanh, width 32, orthogonal weights, 4 random
  examples), relative to how far it moves until equilibrium, after some steps of 0.1 on each
  example's own energy. In double precision.
- `mnist`: layers of 128 (tanh, orthogonal weights, biases), 300 batches of 64, 20 steps of
  inference of several sizes, Adam 1e-3; tested on all of the test set.
"""

import argparse
import functools as ft
import math
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from common import add_out, record

import jpc
import jpc.data

BATCH = 64
STEP_SIZES = (0.003, 0.01, 0.03, 0.1, 0.3)


def in_states(step_size: float, steps: int) -> jpc.AbstractInference:
    return jpc.Descent(step_size, steps)


def in_errors(step_size: float, steps: int) -> jpc.AbstractInference:
    return jpc.InErrors(jpc.Descent(step_size, steps))


METHODS = {"states": in_states, "errors": in_errors}


def orthogonal(key, *sizes, **options):
    """A network that neither shrinks nor blows up what goes through it."""
    model = jpc.make_mlp(key, *sizes, "tanh", **options)
    weights = lambda model: [layer.layers[1].weight for layer in model]
    draw = jax.nn.initializers.orthogonal()
    keys = zip(jr.split(key, len(model)), weights(model), strict=True)
    return eqx.tree_at(weights, model, [draw(key, weight.shape) for key, weight in keys])


def reach(out: Path | None, width: int = 32, depth: int = 20) -> None:
    k_x, k_y, key = jr.split(jr.key(0), 3)
    x, y = (jr.normal(k, (4, width)) for k in (k_x, k_y))
    model = orthogonal(key, width, width, depth, width)
    nodes, clamps = jpc.clamp(jpc.feedforward_batch(model, x)[:-1], y, x)

    def move(name: str, steps: int):
        ended = METHODS[name](0.1, steps)(jpc.PCEnergy(), model, nodes, clamps)
        return jnp.linalg.norm(ended.nodes[1] - nodes[1])

    whole = move("errors", 2_000)
    print("| steps | states | errors |\n|---|---|---|")
    for steps in (8, 20, 64, 200):
        moved = {name: float(move(name, steps) / whole) for name in METHODS}
        record(out, steps=steps, **moved)
        row = [f"{part:.2g}" for part in moved.values()]
        print(f"| {steps} | {' | '.join(row)} |", flush=True)


def train(name: str, layers: int, step_size: float, data, test) -> float:
    """The accuracy on the test set in percent, NaN if inference or learning diverged."""
    model = orthogonal(jr.key(0), 784, 128, layers, 10, use_bias=True)
    optim = optax.adam(1e-3)
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    state = dict(model=model, optim=optim, opt_state=opt_state)
    step = ft.partial(jpc.make_pc_step, inference=METHODS[name](step_size, 20))
    how = dict(epochs=1, batch_size=BATCH, key=jr.key(1), progress=False)
    how |= dict(test=test, evaluate=jpc.evaluate_discriminative)
    try:
        fitted = jpc.fit(step, state, data, **how)
    except RuntimeError as error:
        if "diverged" not in str(error) and "not finite" not in str(error):
            raise
        return math.nan
    return fitted.history[-1]["test_acc"]


def mnist(size: str, layers: int, out: Path | None) -> None:
    batches = {"quick": 20, "full": 300}[size]
    loaded = jpc.data.load("mnist", flatten=True)
    data = tuple(array[: batches * BATCH] for array in loaded.train)
    print(f"{layers} layers, {batches} batches of {BATCH}\n")
    print("| test % by step size | " + " | ".join(f"{size:g}" for size in STEP_SIZES) + " |")
    print("|---|" + "---|" * len(STEP_SIZES))
    for name in METHODS:
        accs = [train(name, layers, size, data, loaded.test) for size in STEP_SIZES]
        for step_size, acc in zip(STEP_SIZES, accs, strict=True):
            record(out, method=name, step_size=step_size, accuracy=acc)
        print(f"| {name} | {' | '.join(f'{acc:.1f}' for acc in accs)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["reach", "mnist"])
    parser.add_argument("--size", choices=["quick", "full"], default="full")
    parser.add_argument("--layers", type=int, default=20)
    add_out(parser)
    args = parser.parse_args()
    if args.what == "mnist":
        return mnist(args.size, args.layers, args.out)
    jax.config.update("jax_enable_x64", True)
    return reach(args.out)


if __name__ == "__main__":
    main()
