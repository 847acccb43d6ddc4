"""Does a chain that is written as a graph cost the same, and give the same numbers?

    JPC_DATA_DIR=... python benchmarks/graph.py [--hidden 3 10] [--batches 50] [--out FILE.csv]

The same tanh network 784-300xH-10 learns as a `PCEnergy` of a list of layers and as a
`GraphEnergy` of callables by name, in one scan over batches of 64. The table has the time of a
step by each, taken in turns, and the largest difference of a weight after them all.
"""

import argparse
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from common import BATCH, add_out, batches, device, interleaved, network, record

import jpc

METHODS = {
    "Equilibrium, 2 chords": jpc.Equilibrium(chords=2, max_steps=0, throw=False),
    "Equilibrium, default": jpc.Equilibrium(throw=False),
    "Heun, T = 20": jpc.GradientFlow(reduction="mean", throw=False),
}


def as_chain(layers: list) -> tuple[jpc.AbstractEnergy, Any]:
    return jpc.PCEnergy(), layers


def as_graph(layers: list) -> tuple[jpc.AbstractEnergy, Any]:
    edges = {_name(i): [_name(i - 1)] for i in range(1, len(layers) + 1)}
    return jpc.GraphEnergy(edges), dict(zip(edges, layers, strict=True))


def given(params: Any, x: Any, y: Any) -> dict:
    ends = 0, len(params)
    names = ends if isinstance(params, list) else map(_name, ends)
    return dict(zip(names, (x, y), strict=True))


def _name(i: int) -> str:
    """JAX sorts names: in this way as layers are."""
    return f"z{i:03}"


def epoch(method: Any, energy: Any, params: Any, data: tuple) -> Callable[[], list]:
    """A compiled function of nothing: steps over all batches, and the weights after them."""
    optim, (arrays, static) = optax.adam(1e-3), eqx.partition(params, eqx.is_array)

    def step(carry, batch):
        arrays, state = carry
        params = eqx.combine(arrays, static)
        nodes, clamps = jpc.pose(energy, params, given(params, *batch))
        inferred = method(energy, params, nodes, clamps)
        local, lesson = inferred.lesson or (energy, inferred.nodes)
        options: Any = dict(optim=optim, opt_state=state)
        learned = jpc.learn(local, params, lesson, clamps, **options)
        return (eqx.filter(learned.params, eqx.is_array), learned.opt_state), None

    run = jax.jit(
        lambda arrays, data: jax.lax.scan(step, (arrays, optim.init(arrays)), data)[0][0]
    )
    return lambda: jax.tree.leaves(run(arrays, data))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hidden", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--batches", type=int, default=50)
    add_out(parser)
    args = parser.parse_args()
    data = batches(BATCH, args.batches)
    print(f"{device()}\n{'H':>3}  {'method':<24} {'chain':>7} {'graph':>7} ms   ratio  difference")
    for hidden in args.hidden:
        layers = network(hidden)
        for name, method in METHODS.items():
            runs = {f.__name__: epoch(method, *f(layers), data) for f in (as_chain, as_graph)}
            taken = interleaved(runs, 9)
            chain, graph = (1e3 * taken[key] / args.batches for key in runs)
            made = [list(map(np.asarray, run())) for run in runs.values()]
            apart = max(float(np.abs(a - b).max()) for a, b in zip(*made, strict=True))
            row: Any = dict(hidden=hidden, method=name, chain=chain, graph=graph)
            record(args.out, **row, ratio=graph / chain, difference=apart)
            told = f"{chain:7.3f} {graph:7.3f}      {graph / chain:5.2f}  {apart:.0e}"
            print(f"{hidden:>3}  {name:<24} {told}", flush=True)


if __name__ == "__main__":
    main()
