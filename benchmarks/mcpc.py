"""Monte Carlo predictive coding of MNIST: samples, and how likely test images are.

    JPC_DATA_DIR=... python benchmarks/mcpc.py [--size quick|full] [--picture mcpc.png]
        [--epochs 12] [--out FILE.csv]

A chain of 20, 128 and 128 latents and 784 bits learns from samples of its posteriors (`mcpc`), and
for comparison from their peaks (`map`), with as many steps of inference. Images are drawn as bits
anew in each step, with their grey values as probabilities.

Scores of test images, drawn as bits once:

- nll: minus the log-likelihood of an image in nats, by annealed importance sampling in the
  coordinates of the errors, with Hamiltonian steps. It is an upper bound in the mean.
- gap: how far that is off at most, of images that the network itself has drawn, for which the
  same chains run backwards give a lower bound (bidirectional Monte Carlo).
- mse: the mean squared error of each pixel's probability, given the samples or the peak.

Those of independent pixels, each with its own mean over the training set, are for comparison.
"""

import argparse
import functools as ft
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import numpy as np
import optax
from common import add_out, record

import jpc
import jpc.data

LATENT, WIDTH, PIXELS = 20, 128, 784
ENERGY = jpc.PCEnergy(jpc.bernoulli) + jpc.GaussianPrior(1.0)
METHODS = {
    "mcpc": jpc.MonteCarlo(jpc.Descent(optax.adam(0.1), 50), jpc.Langevin(t1=5.0, dt=0.05), 20),
    "map": jpc.Descent(optax.adam(0.1), 150),
}
SIZES = {
    "quick": dict(images=6_400, epochs=4, tests=20, chains=4, temperatures=100),
    "full": dict(images=60_000, epochs=12, tests=100, chains=4, temperatures=500),
}

# --- training ---


def pose(params, output, input, key):
    """Bits with the grey values as their probabilities. The latents start from zero and what is
    predicted from there.
    """
    bits = jr.bernoulli(key, output).astype(output.dtype)
    start = {0: jnp.zeros((len(output), LATENT))}
    return jpc.pose(ENERGY, params, {len(params): bits}, start=start)


def train(name: str, images: np.ndarray, epochs: int, batch: int = 64) -> tuple[list, float]:
    layers = jpc.make_mlp(jr.key(0), LATENT, WIDTH, 3, PIXELS, "relu", use_bias=True)
    steps = epochs * (len(images) // batch)
    optim = optax.adam(optax.cosine_decay_schedule(3e-3, steps))
    opt_state = optim.init(eqx.filter(layers, eqx.is_inexact_array))
    state = dict(params=layers, optim=optim, opt_state=opt_state)
    step = ft.partial(jpc.make_step, energy=ENERGY, pose=pose, inference=METHODS[name])
    named: Any = dict(epochs=epochs, batch_size=batch, metrics=("energy",), key=jr.key(1))
    fitted = jpc.fit(step, state, (None, images), **named)
    return fitted.state["params"], sum(record["seconds"] for record in fitted.history)


# --- scores ---


def decode(layers: list, errors: list) -> jax.Array:
    """The logits of one example, from the errors of all of its states."""
    z = errors[0]
    for layer, error in zip(layers[:-1], errors[1:], strict=True):
        z = layer(z) + error
    return layers[-1](z)


def likelihood(layers: list, errors: list, bits: jax.Array) -> jax.Array:
    return -jpc.bernoulli(bits, decode(layers, errors))


def log_density(layers, beta, errors, bits):
    """Up to a constant: a standard normal times the likelihood to the power of beta."""
    prior = -0.5 * sum(jnp.sum(e**2) for e in errors)
    return prior + beta * likelihood(layers, errors, bits)


def hamiltonian(key, target, errors, size, leaps=8):
    """One step of Hamiltonian Monte Carlo, and whether it was accepted."""
    k_push, k_accept = jr.split(key)
    keys = jr.split(k_push, len(errors))
    push = [jr.normal(k, e.shape) for k, e in zip(keys, errors, strict=True)]
    along = lambda a, b, by: jax.tree.map(lambda x, y: x + by * y, a, b)
    slope = jax.grad(target)

    def leap(_, state):
        z, p = state
        p = along(p, slope(z), size / 2)
        z = along(z, p, size)
        return z, along(p, slope(z), size / 2)

    end, last = jax.lax.fori_loop(0, leaps, leap, (errors, push))
    total = lambda z, p: target(z) - 0.5 * sum(jnp.sum(x**2) for x in p)
    accepted = jnp.log(jr.uniform(k_accept)) < total(end, last) - total(errors, push)
    return jax.tree.map(ft.partial(jnp.where, accepted), end, errors), accepted


def anneal(key, layers, errors, bits, betas):
    """The log-weight of one chain along these powers of the likelihood, in either direction."""

    def move(carry, step):
        errors, size, weight = carry
        key, before, beta = step
        weight = weight + (beta - before) * likelihood(layers, errors, bits)
        target = lambda errors: log_density(layers, beta, errors, bits)
        errors, accepted = hamiltonian(key, target, errors, size)
        size = size * jnp.where(accepted, 1.02, 1.02**-2.0)  # Two of three are accepted.
        return (errors, size, weight), None

    steps = (jr.split(key, len(betas) - 1), betas[:-1], betas[1:])
    start = (errors, jnp.asarray(0.1), jnp.asarray(0.0))
    return jax.lax.scan(move, start, steps)[0][2]


def draw(key: jax.Array, layers: list) -> tuple[list, jax.Array]:
    """Errors of the prior, and the bits they make."""
    *keys, last = jr.split(key, len(layers) + 1)
    sizes = [LATENT] + [WIDTH] * (len(layers) - 1)
    errors = [jr.normal(k, (n,)) for k, n in zip(keys, sizes, strict=True)]
    return errors, jr.bernoulli(last, jax.nn.sigmoid(decode(layers, errors))).astype(jnp.float32)


@eqx.filter_jit
def estimate(key, layers, bits, betas, chains, errors=None):
    """The log-likelihood of one image, from chains that start at the prior; from one that starts
    at a sample of the posterior, `errors`, backwards.
    """
    if errors is not None:
        return -anneal(key, layers, errors, bits, betas[::-1])
    keys = jr.split(key, (chains, 2))
    run = lambda k: anneal(k[0], layers, draw(k[1], layers)[0], bits, betas)
    return jax.nn.logsumexp(jax.vmap(run)(keys)) - jnp.log(chains)


def score(
    name: str, layers: list, images: np.ndarray, chains: int, temperatures: int
) -> dict[str, Any]:
    betas = jax.nn.sigmoid(jnp.linspace(-6, 6, temperatures))
    betas = (betas - betas[0]) / (betas[-1] - betas[0])
    one, two, three, four = jr.split(jr.key(2), 4)
    each = lambda key: jr.split(key, len(images))
    bits = jr.bernoulli(one, images).astype(jnp.float32)
    run = jax.vmap(ft.partial(estimate, layers=layers, betas=betas, chains=chains))
    nll = -run(each(two), bits=bits)
    errors, drawn = jax.vmap(ft.partial(draw, layers=layers))(each(three))
    below, above = run(each(four), bits=drawn), run(each(four), bits=drawn, errors=errors)
    mse = jnp.mean((reconstruct(layers, bits, METHODS[name]) - bits) ** 2)
    error = jnp.std(nll) / np.sqrt(len(nll))
    return dict(nll=jnp.mean(nll), error=error, gap=jnp.mean(above - below), mse=mse)


def reconstruct(layers: list, bits: jax.Array, method: jpc.AbstractInference) -> jax.Array:
    """The probabilities of the pixels, given the samples or the peak of the posterior."""
    start = {0: jnp.zeros((len(bits), LATENT))}
    posed = jpc.pose(ENERGY, layers, {len(layers): bits}, start=start)
    ended: Any = method(ENERGY, layers, *posed, key=jr.key(3))
    samples = ended.trajectory.values if ended.trajectory else [z[None] for z in ended.nodes[:-1]]
    return jnp.mean(jax.nn.sigmoid(jax.vmap(jax.vmap(layers[-1]))(samples[2])), axis=0)


def score_means(train: np.ndarray, test: np.ndarray) -> dict[str, Any]:
    """Of independent pixels."""
    means = jnp.clip(jnp.mean(train, axis=0), 1e-3, 1 - 1e-3)
    logits = jnp.log(means) - jnp.log1p(-means)
    bits = jr.bernoulli(jr.split(jr.key(2), 4)[0], test).astype(jnp.float32)
    nll = jax.vmap(lambda x: jpc.bernoulli(x, logits))(bits)
    error = jnp.std(nll) / np.sqrt(len(nll))
    return dict(nll=jnp.mean(nll), error=error, gap=0.0, mse=jnp.mean((means - bits) ** 2))


# --- pictures ---


def grid(images: Any, side: int = 10) -> np.ndarray:
    tiles = np.asarray(images)[: side * side].reshape(side, side, 28, 28)
    return tiles.transpose(0, 2, 1, 3).reshape(side * 28, side * 28)


def draw_picture(path: Path, panels: dict[str, Any]) -> None:
    figure, axes = plt.subplots(1, len(panels), figsize=(3 * len(panels), 3.3))
    for axis, (name, images) in zip(axes, panels.items(), strict=True):
        axis.imshow(grid(images), cmap="gray_r", vmin=0, vmax=1)
        axis.set_title(name, fontsize=9)
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="quick")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--epochs", type=int, help="fewer or more than the size says")
    add_out(parser)
    args = parser.parse_args()
    size = SIZES[args.size]
    size = size | (dict(epochs=args.epochs) if args.epochs else {})
    data = jpc.data.load("mnist", normalise=False, flatten=True, download=False)
    images, tests = data.train[0][: size["images"]], data.test[0][: size["tests"]]
    rows: Any = {"independent": score_means(images, tests)}
    panels: Any = {"test images": data.test[0]}
    for name in METHODS:
        layers, seconds = train(name, images, size["epochs"])
        rows[name] = score(name, layers, tests, size["chains"], size["temperatures"])
        rows[name] |= dict(seconds=seconds)
        logits = jpc.sample(jr.key(4), layers, (100, LATENT))
        panels[f"samples, {name}"] = jax.nn.sigmoid(logits)
        print(name, {key: round(float(value), 4) for key, value in rows[name].items()}, flush=True)
    print(f"\n{'':20s} {'nll':>8s} {'+-':>5s} {'gap':>5s} {'mse':>7s} {'seconds':>8s}")
    for name, row in rows.items():
        scores = {key: float(row[key]) for key in ("nll", "error", "gap", "mse")}
        record(args.out, learned_from=name, epochs=size["epochs"], **scores)
        numbers = f"{row['nll']:8.1f} {row['error']:5.1f} {row['gap']:5.1f} {row['mse']:7.4f}"
        print(f"{name:20s} {numbers} {row.get('seconds', 0):8.0f}")
    if args.picture:
        draw_picture(args.picture, panels)


if __name__ == "__main__":
    main()
