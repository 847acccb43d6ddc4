"""What does `Langevin` cost, relative to the same steps in a loop by hand?

    python benchmarks/langevin.py [--steps 100] [--batch 128] [--repeats 15]

A network of Monte Carlo predictive coding, 20-128-128-784 with bits as outputs, and smaller ones.
Both go the same number of Euler steps and keep the last states; times are medians of runs in
turns.
"""

import argparse
from collections.abc import Callable
from typing import Any

import diffrax as dfx
import jax
import jax.numpy as jnp
import jax.random as jr
from common import device, interleaved

import jpc

DT = 0.05
SIZES = ((20, 128, 128, 784), (20, 64, 64, 64), (2, 2, 2, 2))


def bits(target: jax.Array, logits: jax.Array) -> jax.Array:
    return jnp.sum(jax.nn.softplus(logits) - target * logits)


ENERGY = jpc.PCEnergy(bits) + jpc.GaussianPrior(1.0)


def problem(sizes: tuple[int, ...], batch: int) -> tuple[Any, ...]:
    first, width, _, last = sizes
    layers = jpc.make_mlp(jr.key(0), first, width, 3, last, "relu", use_bias=True)
    output = jr.bernoulli(jr.key(1), 0.2, (batch, last)).astype(jnp.float32)
    return layers, *jpc.clamp([jnp.zeros((batch, n)) for n in sizes[:-1]], output)


def by_hand(steps: int, layers, nodes, clamps) -> Callable:
    """Euler's method of the whole batch, one key for each step."""
    gradient = jax.grad(lambda z: len(z[0]) * ENERGY(layers, z, clamps))

    def step(z, key):
        keys = [None if x is None else k for x, k in zip(z, jr.split(key, len(z)), strict=True)]
        move = lambda x, g, k: x - DT * g + jnp.sqrt(2 * DT) * jr.normal(k, x.shape)
        return jax.tree.map(move, z, gradient(z), keys), None

    run = jax.jit(lambda z, key: jax.lax.scan(step, z, jr.split(key, steps))[0])
    return lambda: run(nodes, jr.key(0))


def by_diffrax(path: Any, steps: int, *posed) -> Callable:
    method = jpc.Langevin(DT * steps, DT, path=path)
    return lambda: method(ENERGY, *posed, key=jr.key(0)).nodes


def measure(sizes: tuple[int, ...], steps: int, batch: int, repeats: int) -> None:
    posed = problem(sizes, batch)
    times = interleaved(
        {
            "by hand": by_hand(steps, *posed),
            "Langevin": by_diffrax(dfx.UnsafeBrownianPath, steps, *posed),
            "Langevin, a virtual tree": by_diffrax(dfx.VirtualBrownianTree, steps, *posed),
        },
        repeats,
    )
    print(f"\n{'-'.join(map(str, sizes))}, {steps} steps, {batch} examples")
    for name, seconds in times.items():
        print(f"  {name:26s} {1e3 * seconds:9.1f} ms {seconds / times['by hand']:7.2f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    print(device())
    for sizes in SIZES:
        measure(sizes, args.steps, args.batch, args.repeats)


if __name__ == "__main__":
    main()
