"""Associative memory: images are stored in a generative network, and recalled from a part of them.

    JPC_DATA_DIR=... python benchmarks/memory.py [--size quick|full] [--names mnist cifar10]
        [--counts 64 256 1024] [--updates 500] [--picture memory.png]
        [--out FILE.csv]

The network has 256 latents with a Gaussian prior, 512 hidden units and the pixels. To store images
is to learn to generate them, each from latents of its own, which are inferred. They are recalled

- from their upper half: the lower one is free (`mask=`), and inferred with everything else;
- from noise: each pixel is given, but with noise of the standard deviation 0.3 added, and the
  precision of the output says so. The answer is what the network predicts.

The table has the mean squared error of a pixel (of the lower half; of the whole image), with what
it would be for the mean of the images that are stored (of a half) and for the noisy image itself,
and how often the stored image that is nearest to the answer, in these pixels, is the right one.
"""

import argparse
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

LATENT, HIDDEN, NOISE = 256, 512, 0.3
SIZES = {
    "quick": dict(counts=(64,), updates=300, steps=300),
    "full": dict(counts=(64, 256, 1024), updates=500, steps=300),
}


def energy(precision: float = 1.0) -> jpc.AbstractEnergy:
    """With this precision of the pixels. That of the hidden units is 10, so that they follow the
    latents, and not the noise of an image.
    """
    return jpc.PCEnergy(precision=[10.0, precision]) + jpc.GaussianPrior(0.1)


# --- storing ---


def rest(model: Any, count: int) -> list[jax.Array]:
    """Latents of zero, and what the network predicts from them."""
    latents = jnp.zeros((count, LATENT))
    return [latents, *jpc.init_activities_with_ffwd(model, latents)]


def store(images: jax.Array, updates: int, batch: int = 256) -> list:
    """Learns to generate images. Inference goes on from where it was the last time."""
    shape = (LATENT, HIDDEN, 2, images.shape[1])
    model = jpc.make_mlp(jr.key(0), *shape, "tanh", use_bias=True)
    optim = optax.adam(optax.cosine_decay_schedule(2e-3, updates))
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    kept = rest(model, len(images))
    # From where it was, the first steps of Adam may go up a little: that is no error.
    inference = jpc.Descent(optax.adam(0.05), 10, throw=False)
    options: Any = dict(energy=energy(), inference=inference)
    for i in range(updates):
        which = jr.permutation(jr.key(i), len(images))[:batch]
        options["activities"] = [z[which] for z in kept]
        step = jpc.make_pc_step(model, optim, opt_state, images[which], **options)
        model, opt_state = step["model"], step["opt_state"]
        kept = [z.at[which].set(new) for z, new in zip(kept, step["activities"], strict=True)]
    return model


# --- recalling ---


def complete(model: list, images: jax.Array, seen: jax.Array, steps: int) -> jax.Array:
    """The images, with the pixels that are not seen inferred."""
    mask, start = jnp.broadcast_to(seen, images.shape), rest(model, len(images))
    options: Any = dict(mask=mask, energy=energy(), inference=descend(steps))
    inferred = jpc.solve_inference((model, None), start, images, **options)
    return jnp.where(mask, images, inferred[-1])


def clean(model: list, noisy: jax.Array, steps: int) -> jax.Array:
    """What the network predicts, given noisy images."""
    options: Any = dict(energy=energy(NOISE**-2), inference=descend(steps))
    start = rest(model, len(noisy))
    return jpc.solve_inference((model, None), start, noisy, **options)[-1]


def descend(steps: int) -> jpc.Descent:
    return jpc.Descent(optax.adam(optax.cosine_decay_schedule(0.3, steps, 0.01)), steps)


# --- what came of it ---


def compare(answers: jax.Array, images: jax.Array) -> tuple[float, float]:
    """The mean squared error, and how often the nearest image is the right one, in percent."""
    squares = lambda x: jnp.sum(x**2, axis=1)
    distances = squares(answers)[:, None] + squares(images)[None] - 2 * answers @ images.T
    right = jnp.argmin(distances, axis=1) == jnp.arange(len(images))
    return float(jnp.mean((answers - images) ** 2)), 100 * float(jnp.mean(right))


def upper_half(shape: tuple[int, ...]) -> jax.Array:
    rows = jnp.arange(shape[1])[None, :, None] < shape[1] // 2
    return jnp.broadcast_to(rows, shape).ravel()


def recall(data: jpc.data.Dataset, count: int, updates: int, steps: int) -> tuple[dict, list]:
    images, seen = jnp.asarray(data.train[0][:count]), upper_half(data.shape)
    model = store(images, updates)
    completed = complete(model, images, seen, steps)
    noisy = images + NOISE * jr.normal(jr.key(1), images.shape)
    cleaned = clean(model, noisy, steps)
    hidden = lambda x: x[:, ~seen]
    mean = jnp.broadcast_to(jnp.mean(images, axis=0), images.shape)
    row = dict(
        half=compare(hidden(completed), hidden(images)),
        mean=compare(hidden(mean), hidden(images))[0],
        noise=compare(cleaned, images),
        noisy=compare(noisy, images)[0],
    )
    return row, [images, jnp.where(seen, images, 0.5), completed, noisy, cleaned]


def draw_picture(path: Path, panels: dict[str, list], data: dict[str, jpc.data.Dataset]) -> None:
    names = ("stored", "upper half", "completed", "with noise", "cleaned")
    figure, axes = plt.subplots(len(panels), 1, figsize=(7, 3.6 * len(panels)))
    for axis, (title, rows) in zip(np.atleast_1d(axes), panels.items(), strict=True):
        shown = [data[title].restore(row[:10]).transpose(0, 2, 3, 1) for row in rows]
        side = shown[0].shape[1]
        lines = [np.concatenate(list(row), axis=1) for row in shown]
        axis.imshow(np.concatenate(lines), cmap="gray")
        axis.set_yticks([side * (i + 0.5) for i in range(len(names))], names, fontsize=8)
        axis.set_xticks([])
        axis.set_title(title, fontsize=9)
    figure.savefig(path, dpi=90, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="quick")
    parser.add_argument("--names", nargs="+", default=["mnist", "cifar10"])
    parser.add_argument("--counts", type=int, nargs="+", help="how many images to store")
    parser.add_argument("--updates", type=int, help="how many steps of learning to take")
    parser.add_argument("--picture", type=Path)
    add_out(parser)
    args = parser.parse_args()
    given = {name: getattr(args, name) for name in ("counts", "updates")}
    size: Any = SIZES[args.size] | {name: value for name, value in given.items() if value}
    load = lambda name: jpc.data.load(name, normalise=False, flatten=True, download=False)
    data, panels = {name: load(name) for name in args.names}, {}
    columns = ("half: mse", "of the mean", "right, %", "noise: mse", "of the noise", "right, %")
    print(f"{'':8s} {'stored':>6s}" + "".join(f" {name:>12s}" for name in columns))
    for name in args.names:
        for count in size["counts"]:
            row, images = recall(data[name], count, size["updates"], size["steps"])
            panels.setdefault(name, images)
            half, noise = row["half"], row["noise"]
            numbers = (half[0], row["mean"], half[1], noise[0], row["noisy"], noise[1])
            named = dict(dataset=name, stored=count, updates=size["updates"])
            named |= dict(half=half[0], mean=row["mean"], half_right=half[1])
            named |= dict(noise=noise[0], noisy=row["noisy"], noise_right=noise[1])
            record(args.out, **named)
            print(f"{name:8s} {count:6d}" + "".join(f" {x:12.4g}" for x in numbers), flush=True)
    if args.picture:
        draw_picture(args.picture, panels, data)


if __name__ == "__main__":
    main()
