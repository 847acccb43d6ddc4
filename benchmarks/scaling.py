"""How far does sharing a batch out over devices carry? On paper: bytes against arithmetic.

    python benchmarks/scaling.py [--out F]  # the table, from the assumptions below
    python benchmarks/scaling.py --count    # what the compiled program sends, on 8 simulated CPUs

Each device has 64 examples. A step of `Equilibrium` with k chords is a forward pass, k times a
forward and a backward pass without weight gradients, and the weight gradients: (4 + 4k) P B
floating-point operations for P parameters and B examples, and 2 P for each of the 4 d_y rows of
the matrix S. Then the gradients are summed over all n devices in a ring: each sends
2 (n - 1) / n times their bytes. A tree of 2 log2(n) messages bounds the time from below.
"""

import argparse
import functools as ft
import math
import os
import re
from pathlib import Path

from common import add_out, write_rows

FLOPS = 0.4 * 67e12  # H200, float32 without tensor cores, at 40 % of the peak.
NVLINK = 450e9  # Bytes per second and direction, within a machine of 8.
NETWORK = 50e9  # 400 Gb/s per device, between machines.
LATENCY = 5e-6  # Of one message.
BATCH, CHORDS, OUTPUT = 64, 2, 10
NETWORKS = {"784-300x10-10": (784, 300, 10), "784-4096x10-10": (784, 4096, 10)}


def count_parameters(input: int, width: int, hidden: int) -> int:
    return input * width + (hidden - 1) * width**2 + width * OUTPUT


def compute_seconds(parameters: int, batch: float) -> float:
    operations = (4 + 4 * CHORDS) * parameters * batch + 2 * parameters * 4 * OUTPUT
    return operations / FLOPS


def sent_bytes(parameters: int, devices: int) -> float:
    return 2 * (devices - 1) / devices * 4 * parameters


def send_seconds(parameters: int, devices: int) -> float:
    bandwidth = NVLINK if devices <= 8 else NETWORK
    return sent_bytes(parameters, devices) / bandwidth + 2 * math.log2(devices) * LATENCY


COLUMNS = ("network", "devices", "compute_ms", "sent_mb", "send_ms", "efficiency", "batch")


def table(out: Path | None) -> None:
    print("| network | devices | computes | sends | sends for | efficiency | batch for 90 % |")
    print("|---|---|---|---|---|---|---|")
    for name, sizes in NETWORKS.items():
        parameters = count_parameters(*sizes)
        compute = compute_seconds(parameters, BATCH)
        each = compute_seconds(parameters, 1) - compute_seconds(parameters, 0)
        for devices in (8, 64, 512):
            send, size = send_seconds(parameters, devices), sent_bytes(parameters, devices)
            enough = (9 * send - compute_seconds(parameters, 0)) / each
            row = 1e3 * compute, 1e-6 * size, 1e3 * send, 100 * compute / (compute + send), enough
            write_rows(out, COLUMNS, [(name, devices, *row)])
            print(
                f"| {name} | {devices} | {1e3 * compute:.2f} ms | {1e-6 * size:.0f} MB "
                f"| {1e3 * send:.2f} ms | {compute / (compute + send):.0%} | {enough:.0f} |"
            )


def count() -> None:
    """The bytes of every collective operation in a compiled step of the small network."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    import equinox as eqx  # noqa: PLC0415
    import jax  # noqa: PLC0415
    import optax  # noqa: PLC0415

    import jpc  # noqa: PLC0415

    model = jpc.make_mlp(jax.random.key(0), 784, 300, 11, OUTPUT, "tanh")
    optim = optax.adam(1e-3)
    state = optim.init(eqx.filter(model, eqx.is_array))
    method = jpc.Equilibrium(chords=CHORDS, max_steps=0)
    step = ft.partial(jpc.make_pc_step, optim=optim, inference=method)
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec
    place = lambda tree, *axes: jax.device_put(tree, jax.NamedSharding(mesh, spec(*axes)))
    arrays, rest = eqx.partition((model, state), eqx.is_array)

    def learn(arrays, y, x):
        model, state = eqx.combine(arrays, rest)
        result = step(model=model, opt_state=state, output=y, input=x)
        return eqx.filter((result["model"], result["opt_state"]), eqx.is_array)

    zeros = [place(jax.numpy.zeros((8 * BATCH, size)), "data") for size in (OUTPUT, 784)]
    text = jax.jit(learn).lower(place(arrays), *zeros).compile().as_text()
    found = re.findall(r"= (.*?) (all-\w+|reduce-scatter|collective-permute)\(", text)
    for shapes, name in sorted(found, key=lambda entry: entry[1]):
        print(f"{name}: {_bytes(shapes)} bytes")
    print(f"parameters: {4 * count_parameters(784, 300, 10)} bytes")


def _bytes(shapes: str) -> int:
    sizes = {"f32": 4, "s32": 4, "u32": 4, "pred": 1}
    found = re.findall(rf"({'|'.join(sizes)})\[([\d,]*)\]", shapes)
    return sum(sizes[kind] * math.prod(map(int, filter(None, s.split(",")))) for kind, s in found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", action="store_true")
    add_out(parser)
    given = parser.parse_args()
    count() if given.count else table(given.out)
