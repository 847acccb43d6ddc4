"""Do the iterations of exact inference settle where a network has kinks?

    python benchmarks/hops.py [--channels 8] [--examples 16] [--chords 2 3 4 5 6]
        [--out FILE.csv]

A VGG5 at initialisation, with average and with max pooling, cross-entropy, random images. After
each number of chords: how far the states are from those after one chord less, relative to how far
inference has moved them, and how much the energy of the batch has changed, relatively.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from common import add_out, device, record, start

import jpc
from jpc._metrics import tree_norm

ENERGY = jpc.PCEnergy(jpc.cross_entropy)


@eqx.filter_jit
def infer(method, layers, x, y):
    """How far the states have moved, and their energy."""
    nodes, clamps = start(layers, x, y)
    ended = method(ENERGY, layers, nodes, clamps).nodes
    return jax.tree.map(jnp.subtract, ended, nodes), ENERGY(layers, ended, clamps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--examples", type=int, default=16)
    parser.add_argument("--chords", type=int, nargs="+", default=[2, 3, 4, 5, 6])
    add_out(parser)
    args = parser.parse_args()
    print(device())
    x = jr.normal(jr.key(1), (args.examples, 3, 32, 32))
    y = jax.nn.one_hot(jnp.arange(args.examples) % 10, 10)
    for pool in ("average", "max"):
        model = jpc.make_cnn(
            jr.key(0), (3, 32, 32), 10, size="vgg5", channels=args.channels, pool=pool
        )
        layers, last = [jpc.Layer(layer) for layer in model], None
        print(f"\n{pool} pooling\n{'chords':>8}{'states':>10}{'energy':>10}")
        for count in args.chords:
            method = jpc.Equilibrium(chords=count, max_steps=0, throw=False)
            moved, energy = infer(method, layers, x, y)
            if last is not None:
                change = tree_norm(jax.tree.map(jnp.subtract, moved, last[0])) / tree_norm(moved)
                falls = abs(energy - last[1]) / energy
                changes = dict(states=float(change), energy=float(falls))
                record(args.out, pool=pool, chords=count, **changes)
                print(f"{count:8}{change:10.1e}{falls:10.1e}", flush=True)
            last = moved, energy


if __name__ == "__main__":
    main()
