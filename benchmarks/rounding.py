"""What do layers learn from that a short inference has hardly reached?

    JPC_DATA_DIR=... python benchmarks/rounding.py [--hidden 10] [--act tanh] [--times 50 100 200]
        [--out FILE.csv]

The norm of each layer's learning gradient in float64, after a flow of the batch's mean energy to
T, at initialisation; and that of its error in float32. By Heun (`PIDController(1e-3, 1e-3)`) from
JPC's feedforward pass, whose states are rounded as the predictions that they are compared with,
and from `jax.vmap` of one example's; and by Euler, whose small steps are lost in what they are
added to. With an error above the gradient a layer learns from rounding.
"""

import argparse
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from common import BATCH, add_out, batches, device, network, record, to_double

import jpc
from jpc._layer import feedforward_batch
from jpc.experiments._methods import paper_flow


def pass_by_vmap(layers, x):
    return jax.vmap(lambda z: jpc.feedforward(layers, z))(x)


FLOWS = {
    "Heun": (feedforward_batch, "heun", 0.05),
    "Heun, jax.vmap": (pass_by_vmap, "heun", 0.05),
    "Euler, dt = 2": (feedforward_batch, "euler", 2.0),
    "Euler, dt = 0.05": (feedforward_batch, "euler", 0.05),
}


@eqx.filter_jit
def learning_gradient(name, t1, layers, x, y):
    start, solver, dt = FLOWS[name]
    energy, (nodes, clamps) = jpc.PCEnergy(), jpc.clamp(start(layers, x)[:-1], y, x)
    nodes = paper_flow(solver, t1, dt)(energy, layers, nodes, clamps).nodes
    return jax.tree.leaves(eqx.filter_grad(energy)(layers, nodes, clamps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=10)
    parser.add_argument("--act", default="tanh")
    parser.add_argument("--times", type=float, nargs="+", default=[50.0, 100.0, 200.0])
    add_out(parser)
    args = parser.parse_args()
    print(device())
    x, y = (part[0] for part in batches(BATCH, 1))
    problem = (network(args.hidden, act=args.act), x, y)
    print(f"{'layer':35s}", *(f"{i:7d}" for i in range(1, args.hidden + 2)))
    for t1, name in itertools.product(args.times, FLOWS):
        with jax.enable_x64(True):
            exact = learning_gradient(name, jnp.asarray(t1), *to_double(problem))
            exact = [np.asarray(gradient) for gradient in exact]
        found = learning_gradient(name, jnp.asarray(t1), *problem)
        wrong = [np.asarray(a) - b for a, b in zip(found, exact, strict=True)]
        for kind, arrays in (("gradient", exact), ("error", wrong)):
            norms = [float(np.linalg.norm(array)) for array in arrays]
            for layer, norm in enumerate(norms, start=1):
                record(args.out, t1=t1, flow=name, kind=kind, layer=layer, norm=norm)
            print(f"T = {t1:<4g} {name:16s} {kind:9s}", *(f"{norm:7.0e}" for norm in norms))


if __name__ == "__main__":
    main()
