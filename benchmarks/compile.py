"""How long does the first call take, against depth?

    python benchmarks/compile.py [--depths 10 30 100] [--out FILE.csv]

The gradient of one step (trace, lower, compile; processor time, and wall time) and the time it
then takes to run, for networks of equal tanh layers of 300 units, batch 64.
"""

import argparse
import time

import equinox as eqx
import jax
import jax.numpy as jnp
from common import add_out, backprop, device, network, predictive_coding, record

import jpc

METHODS = {
    "backpropagation": backprop,
    "Equilibrium, 3 chords": predictive_coding(
        jpc.Equilibrium(chords=3, max_steps=0, throw=False)
    ),
    "Equilibrium, default": predictive_coding(jpc.Equilibrium(throw=False)),
    "Heun, default": predictive_coding(jpc.GradientFlow(throw=False)),
}


def first_call(gradient, layers, x, y) -> tuple[float, float, float, float]:
    arrays, static = eqx.partition(layers, eqx.is_array)
    function = lambda a, x, y: eqx.filter(gradient(eqx.combine(a, static), x, y), eqx.is_array)
    cpu, wall = time.process_time(), time.perf_counter()
    lowered = jax.jit(function).lower(arrays, x, y)
    traced = time.perf_counter() - wall
    compiled = lowered.compile()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(arrays, x, y))
        times.append(time.perf_counter() - begin)
    return cpu, traced, wall, sorted(times)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depths", type=int, nargs="+", default=[10, 30, 100])
    add_out(parser)
    args = parser.parse_args()
    print(device())
    x, y = jnp.ones((64, 784)), jax.nn.one_hot(jnp.arange(64) % 10, 10)
    for name, gradient in METHODS.items():
        for depth in args.depths:
            cpu, traced, wall, run = first_call(gradient, network(depth), x, y)
            named = dict(wall=wall, processor=cpu, traced=traced, run=run)
            record(args.out, method=name, layers=depth, **named)
            parts = f"{traced:5.2f} s of them to trace, {cpu:6.2f} s of processor time"
            first = f"first call {wall:6.2f} s ({parts})"
            print(f"{name:24s} {depth:4d} layers: {first}, then {1e3 * run:8.2f} ms")


if __name__ == "__main__":
    main()
