"""Classifies and generates MNIST's digits with one network: bidirectional predictive coding.

    JPC_DATA_DIR=... python benchmarks/bpc.py [--size quick|full] [--only NAME] [--picture FILE]
        [--out FILE.csv]

Labels are inputs and images, with pixels in [0, 1], outputs. The hidden states have 256 units,
each direction is a ReLU network between them, and they weigh 1e-3 (top-down) to 1 (bottom-up).
Training is 300 batches of 64. What is printed: the accuracy, in percent of all 10,000 test images,
of the label that the bottom-up sweep finds; half the squared error of the image that the top-down
sweep makes from the label; and how long training took.

quick: the default method of inference at depth 2 and 6. full: also other seeds, other methods,
equal weights, skip connections, predictive dendrites and missing labels.
"""

import argparse
import functools as ft
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import numpy as np
import optax
from common import add_out, record

import jpc
import jpc.data

BATCH, BATCHES, WIDTH = 64, 300, 256
CLASSES, PIXELS = 10, 784
# The step size of the published notebook, 0.5, is for the mean of the batch.
ONE_STEP = jpc.Descent(0.5 / BATCH, 1)
PLAIN = jpc.Descent(0.1, 20)


def begin(depth, seed):
    """Two models, and an optimiser and its state for each."""
    keys = jr.split(jr.key(seed))
    down = jpc.make_mlp(keys[0], CLASSES, WIDTH, depth, PIXELS, "relu")
    up = jpc.make_mlp(keys[1], PIXELS, WIDTH, depth, CLASSES, "relu")[::-1]
    optim = optax.adam(1e-3)
    states = [optim.init(eqx.filter(model, eqx.is_array)) for model in (down, up)]
    return dict(top_down_model=down, bottom_up_model=up, optims=[optim] * 2, opt_states=states)


def train(data, depth, *, seed=0, labelled=1.0, forward=1e-3, skips=False, **options):
    """The state after training, and what the test set says of it."""
    images, labels = (x[: BATCH * BATCHES] for x in data.train)
    labels = np.eye(CLASSES, dtype=np.float32)[labels]
    labels[round(labelled * len(labels)) :] = np.nan
    if "energy" not in options:
        options["forward_energy_weight"] = forward
    skip_model = jpc.make_skip_model(depth) if skips else None
    step = jpc.make_bpc_step if labelled == 1 else step_with_missing_labels
    fitted = jpc.fit(
        ft.partial(step, skip_model=skip_model, **options),
        begin(depth, seed),
        (labels, images),
        epochs=1,
        batch_size=BATCH,
        key=jr.key(seed),
        metrics=("energy",),
        test=(data.test[1], data.test[0]),
        evaluate=ft.partial(jpc.evaluate_bpc, skip_model=skip_model),
        progress=False,
    )
    return fitted.state, fitted.history[-1]


def step_with_missing_labels(input, **given):
    return jpc.make_bpc_step(input=input, input_mask=~jnp.isnan(input), **given)


def generate(state):
    """An image of each digit."""
    return jpc.feedforward_batch(state["top_down_model"], jnp.eye(CLASSES))[-1]


def draw(data, states, path):
    """A row of digits for each depth."""
    figure, axes = plt.subplots(len(states), CLASSES, figsize=(6, 0.75 * len(states)))
    for row, (depth, state) in zip(axes, states.items(), strict=True):
        for axis, image in zip(row, data.restore(generate(state)), strict=True):
            axis.imshow(image[0], cmap="gray", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(f"depth {depth}", fontsize=7)
    figure.tight_layout(pad=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def settings(size):
    """What to train, by name."""
    chosen = {f"depth {depth}": dict(depth=depth) for depth in (2, 6)}
    if size == "quick":
        return chosen
    for depth in (2, 6):
        name = f"depth {depth}"
        chosen |= {f"{name}, seed {seed}": dict(depth=depth, seed=seed) for seed in (1, 2)}
        chosen[f"{name}, one step of 0.5 / 64"] = dict(depth=depth, inference=ONE_STEP)
        chosen[f"{name}, 20 steps of 0.1"] = dict(depth=depth, inference=PLAIN)
        chosen[f"{name}, weights 1 : 1"] = dict(depth=depth, forward=1.0)
        dendrites = jpc.BPCEnergy(1e-3, source_gradient=0.0)
        chosen[f"{name}, predictive dendrites"] = dict(depth=depth, energy=dendrites)
        chosen[f"{name}, a tenth of the labels"] = dict(depth=depth, labelled=0.1)
    chosen["depth 6, skip connections"] = dict(depth=6, skips=True)
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=("quick", "full"), default="quick")
    parser.add_argument("--only", default="", help="settings with this in their names")
    parser.add_argument("--picture", type=Path)
    add_out(parser)
    args = parser.parse_args()
    data, states = jpc.data.load("mnist", flatten=True, normalise=False), {}
    for name, chosen in settings(args.size).items():
        if args.only not in name:
            continue
        state, score = train(data, **chosen)
        scores = f"{score['test_acc']:5.1f} %  {score['test_loss']:6.2f}"
        print(f"{name:32} {scores}  {score['seconds']:5.0f} s", flush=True)
        named = dict(accuracy=score["test_acc"], error=score["test_loss"])
        record(args.out, setting=name, **named, seconds=score["seconds"])
        if name in ("depth 2", "depth 6"):
            states[chosen["depth"]] = state
    if args.picture is not None:
        draw(data, states, args.picture)


if __name__ == "__main__":
    main()
