"""Does `GradientFlow` cost more than calling Diffrax by hand?

    JPC_DATA_DIR=... python benchmarks/flow.py [--batches 4] [--out FILE.csv]

Inference of batches of 64 with Heun at the paper's settings (T = 20, PIDController(1e-3, 1e-3))
in one compiled loop: `jpc.GradientFlow`, `diffrax.diffeqsolve` on each example's gradient with
the same test for a steady state, and without one. Interleaved, medians.
"""

import argparse

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from common import BATCH, add_out, batches, device, interleaved, network, record, start

import jpc

CONTROLLER = dfx.PIDController(rtol=1e-3, atol=1e-3)


def ours(layers, nodes, clamps):
    flow = jpc.GradientFlow(controller=CONTROLLER, throw=False)
    return flow(jpc.PCEnergy(), layers, nodes, clamps).nodes


def by_hand(steady: bool):
    def one(layers, nodes, clamps):
        field = lambda t, z, args: jax.tree.map(
            jnp.negative, jax.grad(jpc.PCEnergy().example, argnums=1)(layers, z, clamps)
        )
        first = optx.rms_norm(field(None, nodes, None))
        tolerance = jnp.minimum(0.1 * first, 2e-3 * (1 + optx.rms_norm(nodes)))
        event = dfx.Event(dfx.steady_state_event(0.0, tolerance, optx.rms_norm))
        solution = dfx.diffeqsolve(
            dfx.ODETerm(field), dfx.Heun(), 0.0, 20.0, None, nodes, None,
            stepsize_controller=CONTROLLER, max_steps=100_000, throw=False,
            event=event if steady else None,
        )  # fmt: skip
        return jax.tree.map(lambda z: z[-1], solution.ys)

    return lambda layers, nodes, clamps: jax.vmap(lambda n, c: one(layers, n, c))(nodes, clamps)


def over_batches(infer, layers, x, y):
    call = eqx.filter_jit(
        lambda layers, x, y: jax.lax.map(lambda b: infer(layers, *start(layers, *b)), (x, y))
    )
    return lambda: call(layers, x, y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=4)
    add_out(parser)
    args = parser.parse_args()
    print(device())
    data = batches(BATCH, args.batches)
    methods = {
        "GradientFlow": ours,
        "by hand": by_hand(steady=True),
        "by hand, always to T": by_hand(steady=False),
    }
    for hidden in (3, 5, 10):
        layers = network(hidden)
        calls = {name: over_batches(m, layers, *data) for name, m in methods.items()}
        times = interleaved(calls, repeats=9)
        print(f"\n{hidden} hidden layers")
        for name, seconds in times.items():
            ratio, ms = seconds / times["by hand"], 1e3 * seconds / len(data[0])
            record(args.out, hidden=hidden, method=name, ms=ms, ratio=ratio)
            print(f"  {name:22s} {ms:9.3f} ms {ratio:7.2f} x")


if __name__ == "__main__":
    main()
