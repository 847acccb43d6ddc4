"""How much faster is `jpc.Conv2d` than Equinox's convolution on a CPU?

    python benchmarks/convolutions.py [--channels 16] [--batch 64] [--steps 5] [--rounds 5]
        [--out FILE.csv]

Steps of a VGG5 on images of random numbers, by several methods: in `fit`, and by themselves. The
two networks have the same weights, and take turns. Times are medians.
"""

import argparse
import functools as ft
import statistics
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from common import add_out, device, record

import jpc

METHODS: dict[str, Any] = {
    "backpropagation, in fit": ("fit", jpc.Backprop()),
    "Equilibrium(), in fit": ("fit", jpc.Equilibrium()),
    "backpropagation, by itself": ("step", jpc.Backprop()),
    "Equilibrium(), by itself": ("step", jpc.Equilibrium()),
    "Heun, the defaults, by itself": ("step", None),
}


def with_equinox(model: list) -> list:
    """The same network with Equinox's convolutions."""

    def exchanged(part: Any) -> Any:
        if not isinstance(part, jpc.Conv2d):
            return part
        fields = part.in_channels, part.out_channels, part.kernel_size, part.stride, part.padding
        conv = eqx.nn.Conv2d(*fields, use_bias=part.use_bias, key=jr.key(0))
        return eqx.tree_at(lambda c: (c.weight, c.bias), conv, (part.weight, part.bias))

    return jax.tree.map(exchanged, model, is_leaf=lambda part: isinstance(part, jpc.Conv2d))


def seconds_of(how: str, rule: Any, model: list, data: tuple, steps: int) -> float:
    """Of one step, without what compiling takes."""
    optim = optax.adam(1e-3)
    state = dict(model=model, optim=optim, opt_state=optim.init(eqx.filter(model, eqx.is_array)))
    named = {} if rule is None else dict(inference=rule)
    x, y = data
    if how == "fit":
        every = jnp.tile(x, (steps, 1, 1, 1)), jnp.tile(y, (steps, 1))
        more: Any = dict(epochs=2, batch_size=len(x), key=jr.key(0), progress=False)
        fitted = jpc.fit(ft.partial(jpc.make_pc_step, **named), state, every, **more)
        return fitted.history[-1]["seconds"] / steps
    step = lambda: jax.block_until_ready(jpc.make_pc_step(**state, output=y, input=x, **named))
    step()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - begin) / steps


def main(channels: int, batch: int, steps: int, rounds: int, out: Path | None) -> None:
    data = jr.normal(jr.key(1), (batch, 3, 32, 32)), jnp.eye(10)[jnp.arange(batch) % 10]
    ours = jpc.make_cnn(jr.key(0), (3, 32, 32), 10, size="vgg5", channels=channels)
    networks = dict(ours=ours, theirs=with_equinox(ours))
    print(f"{device()}, VGG5 with {channels} channels, batch {batch}, ms a step")
    print(f"{'':30} {'jpc.Conv2d':>10} {'eqx.nn.Conv2d':>13} {'ratio':>6}")
    for name, (how, rule) in METHODS.items():
        times: dict[str, list[float]] = {who: [] for who in networks}
        for _ in range(rounds):
            for who, model in networks.items():
                times[who].append(1e3 * seconds_of(how, rule, model, data, steps))
        mine, other = (statistics.median(times[who]) for who in networks)
        record(out, method=name, ours=mine, equinox=other, ratio=other / mine)
        print(f"{name:30} {mine:10.1f} {other:13.1f} {other / mine:6.1f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    add_out(parser)
    given = parser.parse_args()
    main(given.channels, given.batch, given.steps, given.rounds, given.out)
