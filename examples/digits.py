"""Trains a predictive coding network to read handwritten digits, and plots how it went."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits

import jpc

EPOCHS, BATCH = 8, 64
OPTIONS = dict(loss_id="ce")  # Cross-entropy at the output.
PICTURE = Path("out/digits.png")


def load(rng):
    """Images as vectors in [0, 1] and one-hot labels: 80% to train with, 20% to test."""
    images, labels = load_digits(return_X_y=True)
    x, y = jnp.asarray(images / 16), jax.nn.one_hot(labels, 10)
    train, test = np.split(rng.permutation(len(x)), [int(0.8 * len(x))])
    return (x[train], y[train]), (x[test], y[test])


def batches(x, y, rng):
    """One epoch in random order. The last, smaller batch is dropped: every step has the same
    shapes, so it is compiled once.
    """
    order = rng.permutation(len(x))[: len(x) // BATCH * BATCH]
    for batch in order.reshape(-1, BATCH):
        yield x[batch], y[batch]


def train(model, optim, data, test_data, rng, console):
    """Returns the test accuracy after each epoch."""
    opt_state = optim.init((eqx.filter(model, eqx.is_array), None))
    test_x, test_y = test_data
    accuracies = []
    epochs = range(1, EPOCHS + 1)
    for epoch in track(epochs, "training", console=console, disable=not console.is_terminal):
        for x, y in batches(*data, rng):
            result = jpc.make_pc_step(
                model, optim, opt_state, y, x, inference=jpc.Equilibrium(), **OPTIONS
            )
            model, opt_state = result["model"], result["opt_state"]
        loss, accuracy = jpc.test_discriminative_pc(model, test_y, test_x, loss_id="ce")
        accuracies.append(float(accuracy))
        console.print(f"epoch {epoch:2d}   test loss {loss:.3f}   test accuracy {accuracy:.1f}%")
    return accuracies


def energies_over_time(model, optim, x, y, every=0.1):
    """The energy of each layer during inference of one batch, and the times."""
    opt_state = optim.init((eqx.filter(model, eqx.is_array), None))
    record = dict(record_energies=True, record_every=every, max_t1=10)
    result = jpc.make_pc_step(model, optim, opt_state, y, x, **record, **OPTIONS)
    return every * np.arange(len(result["energies"])), result["energies"]


def plot(times, energies, accuracies):
    """Left: inference, descent in the activities. Right: learning, descent in the parameters."""
    plt.rcParams.update({"font.size": 13, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", dpi=150)
    for layer, energy in reversed(list(enumerate(energies.T, start=1))):
        left.plot(times, energy, linewidth=2, label=f"layer {layer}")
    left.set(title="Inference of the first batch", xlabel="inference time", ylabel="energy")
    left.set(yscale="log", ylim=(1e-4, 10))
    left.legend(frameon=False)
    right.plot(range(1, EPOCHS + 1), accuracies, "o-", linewidth=2)
    right.set(title="Learning", xlabel="epoch", ylabel="test accuracy (%)")
    right.grid(axis="y", alpha=0.3)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE)


def main():
    console, rng = Console(), np.random.default_rng(0)
    data, test_data = load(rng)
    model = jpc.make_mlp(jax.random.key(0), 64, 128, 3, 10, "tanh", use_bias=True)
    optim = optax.adam(5e-3)
    times, energies = energies_over_time(model, optim, *next(batches(*data, rng)))
    accuracies = train(model, optim, data, test_data, rng, console)
    plot(times, energies, accuracies)
    console.print(f"test accuracy {accuracies[-1]:.1f}%, picture in {PICTURE}")


if __name__ == "__main__":
    main()
