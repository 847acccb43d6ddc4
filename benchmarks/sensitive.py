"""What does exact inference cost where training at equilibrium makes a network very sensitive?

    JPC_DATA_DIR=... python benchmarks/sensitive.py [--hidden 30] [--width 300] [--steps 80]
        [--every 10] [--out FILE.csv]

A plain tanh network 784-WIDTHxH-10 at its usual initialisation learns MNIST (not normalised) by
`make_pc_step` with `Equilibrium()`, output precision 1, Adam, batches of 64. Learning at this
precision makes S large. Every few steps the table has the trace of A by output, the share of the
examples that have converged, the most steps that one of them took, and the time of the call
relative to one of backpropagation, in turns, medians of three.
"""

import argparse
import functools as ft
import statistics
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from common import BATCH, add_out, batches, device, record

import jpc

METHODS = {"backpropagation": jpc.Backprop(), "Equilibrium()": jpc.Equilibrium(throw=False)}


@eqx.filter_jit
def sensitivity(model: list, x: jax.Array) -> jax.Array:
    """Tr A / n of one example, at a feedforward pass."""
    z = jpc.feedforward(model, x)[:-1]

    def predict(errors: list[jax.Array]) -> jax.Array:
        through = lambda z, pair: pair[0](z) + pair[1]
        return model[-1](ft.reduce(through, zip(model[:-1], errors, strict=True), x))

    jacobians = jax.jacrev(predict)([jnp.zeros_like(each) for each in z])
    return sum(jnp.sum(J**2) for J in jacobians) / len(jacobians[0])


def seconds(call) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(call()["loss"])
    return time.perf_counter() - begin


def main(hidden: int, width: int, steps: int, every: int, out: Path | None) -> None:
    images, labels = batches(BATCH, steps + 1)
    model = jpc.make_mlp(jr.PRNGKey(0), 784, width, hidden + 1, 10, "tanh")
    optim = optax.adam(1e-3)
    state = optim.init((eqx.filter(model, eqx.is_array), None))
    print(device())
    print(f"{'step':>5} {'tr A / n':>9} {'converged':>9} {'most steps':>10} {'time':>7}")
    for i in range(steps + 1):
        data = dict(output=labels[i], input=images[i])
        call = lambda m, model=model, state=state, data=data: jpc.make_pc_step(
            model, optim, state, inference=m, **data
        )
        found = call(METHODS["Equilibrium()"])
        if i % every == 0:
            turns = [[seconds(lambda m=m, c=call: c(m)) for m in METHODS.values()] for _ in "123"]
            base, mine = (statistics.median(times) for times in zip(*turns, strict=True))
            row = dict(step=i, sensitivity=float(sensitivity(model, images[i][0])))
            row |= dict(converged=float(found["converged"]), ratio=mine / base)
            row |= dict(most=int(jnp.max(found["stats"]["steps"])))
            record(out, hidden=hidden, width=width, **row)
            told = f"{row['converged']:9.0%} {row['most']:10d} {row['ratio']:7.1f}"
            print(f"{i:5d} {row['sensitivity']:9.1e} {told}", flush=True)
        model, state = found["model"], found["opt_state"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=30)
    parser.add_argument("--width", type=int, default=300)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--every", type=int, default=10)
    add_out(parser)
    args = parser.parse_args()
    main(args.hidden, args.width, args.steps, args.every, args.out)
