"""What do layers learn from that a short inference has hardly reached?

    JPC_DATA_DIR=... python benchmarks/rounding.py [--hidden 10] [--act tanh] [--times 50 100 200]

The norm of each layer's learning gradient in float64, after Heun of the batch's mean energy
(T, PIDController(1e-3, 1e-3)), at initialisation; and that of its error in float32, from JPC's
feedforward pass, whose states are rounded as the predictions that they are compared with, and from
`jax.vmap` of one example's. With an error above the gradient a layer learns from rounding.
"""

import argparse

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from common import BATCH, batches, device, network, to_double

import jpc
from jpc._layer import feedforward_batch

PASSES = {
    "error, JPC": feedforward_batch,
    "error, jax.vmap": lambda layers, x: jax.vmap(lambda z: jpc.feedforward(layers, z))(x),
}


@eqx.filter_jit
def learning_gradient(name, t1, layers, x, y):
    energy, (nodes, clamps) = jpc.PCEnergy(), jpc.clamp(PASSES[name](layers, x)[:-1], y, x)
    controller = dfx.PIDController(rtol=1e-3, atol=1e-3)
    flow = jpc.GradientFlow(t1=t1, controller=controller, reduction="mean", throw=False)
    nodes = flow(energy, layers, nodes, clamps).nodes
    return jax.tree.leaves(eqx.filter_grad(energy)(layers, nodes, clamps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=10)
    parser.add_argument("--act", default="tanh")
    parser.add_argument("--times", type=float, nargs="+", default=[50.0, 100.0, 200.0])
    args = parser.parse_args()
    print(device())
    x, y = (part[0] for part in batches(BATCH, 1))
    problem = (network(args.hidden, act=args.act), x, y)
    print(f"{'layer':24s}", *(f"{i:7d}" for i in range(1, args.hidden + 2)))
    for t1 in args.times:
        with jax.enable_x64(True):
            exact = learning_gradient("error, JPC", jnp.asarray(t1), *to_double(problem))
            exact = [np.asarray(gradient) for gradient in exact]
        rows = {"gradient": exact}
        for name in PASSES:
            found = learning_gradient(name, jnp.asarray(t1), *problem)
            rows[name] = [np.asarray(a) - b for a, b in zip(found, exact, strict=True)]
        for name, arrays in rows.items():
            norms = (np.linalg.norm(a) for a in arrays)
            print(f"T = {t1:<4g} {name:15s}", *(f"{norm:7.0e}" for norm in norms))


if __name__ == "__main__":
    main()
