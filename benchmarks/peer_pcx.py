"""One epoch of predictive coding with the peer library pcx, as its tutorials train a network.

It runs in an environment of its own, since pcx 0.6.3 asks for JAX 0.4:

    python3.11 -m venv /tmp/pcx-venv
    /tmp/pcx-venv/bin/pip install pcx==0.6.3    # on a GPU also 'jax[cuda12]<0.5'
    python benchmarks/epoch.py --peer /tmp/pcx-venv/bin/python

It does run with JAX 0.11 and Equinox 0.13. On a machine that has JAX, a folder will do:

    pip install --no-deps --target .carry/pcx pcx==0.6.3 \\
        equinox optax jaxtyping wadler-lindig absl-py typing-extensions
    python benchmarks/epoch.py --peer python3 --peer-path .carry/pcx

`epoch.py` and `table.py` call it with the number of hidden layers, a file of data and the width of
a layer, and read the line of JSON that it prints last: the seconds of the first call and of each
epoch, the largest memory in MB, and the versions.

A tanh network without biases; the energy is half the squared errors; 20
steps of gradient descent of 0.1 on the states of each example, then one of Adam on the weights.
A whole step is in one `pxf.jit`, its 20 steps of inference unrolled, as in the tutorials. The
batches are on the device before the clock starts.
"""

import importlib.metadata
import itertools
import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pcx.functional as pxf
import pcx.nn as pxnn
import pcx.predictive_coding as pxc
import pcx.utils as pxu

STEPS, RATE, REPEATS = 20, 0.1, 3
STATES = pxu.M(pxc.VodeParam | pxc.VodeParam.Cache).to((None, 0))
FREE = pxu.M_hasnot(pxc.VodeParam, clamped=True)
WEIGHTS = pxu.M(pxnn.LayerParam)


class Network(pxc.EnergyModule):
    def __init__(self, sizes):
        super().__init__()
        self.layers = [pxnn.Linear(n, m, bias=False) for n, m in itertools.pairwise(sizes)]
        self.vodes = [pxc.Vode() for _ in self.layers]
        self.vodes[-1].h.clamped = True

    def __call__(self, x, y=None):
        z = self.vodes[0](self.layers[0](x))
        for layer, vode in zip(self.layers[1:], self.vodes[1:], strict=True):
            z = vode(layer(jnp.tanh(z)))
        if y is not None:
            self.vodes[-1].set("h", y)
        return self.vodes[-1].get("u")


@pxf.vmap(STATES, in_axes=(0, 0), out_axes=0)
def predict(x, y, *, model):
    return model(x, y)


@pxf.vmap(STATES, in_axes=(0,), out_axes=None, axis_name="batch")
def energy(x, *, model):
    model(x)
    return jax.lax.pmean(model.energy(), "batch")


def descend(mask, optim, x, model):
    with pxu.step(model, clear_params=pxc.VodeParam.Cache):
        value, grads = pxf.value_and_grad(mask.to([False, True]))(energy)(x, model=model)
    optim.step(model, grads["model"])
    return value


@pxf.jit()
def train(x, y, *, model, states, weights):
    """The energy of the batch before inference and after it."""
    with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
        predict(x, y, model=model)
    before, *_ = [descend(FREE, states, x, model) for _ in range(STEPS)]
    return before, descend(WEIGHTS, weights, x, model)


def make(x, y, hidden, width):
    """The network, and an optimiser for its states and one for its weights."""
    model = Network([x.shape[-1], *[width] * hidden, y.shape[-1]])
    with pxu.step(model, pxc.STATUS.INIT, clear_params=pxc.VodeParam.Cache):
        predict(x, y, model=model)
        # The energy is a mean over the batch, its gradient in one example that much smaller.
        states = pxu.Optim(lambda: optax.sgd(RATE * len(x)), FREE(model))
        weights = pxu.Optim(lambda: optax.adam(1e-3), WEIGHTS(model))
    return dict(model=model, states=states, weights=weights)


def epoch(batches, parts) -> float:
    begin = time.perf_counter()
    for x, y in batches:
        energies = train(x, y, **parts)
    jax.block_until_ready(energies)
    return time.perf_counter() - begin


def memory() -> float | None:
    """The most of the device's that was in use so far, in MB. A CPU does not tell."""
    stats = jax.devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] / 1e6 if stats else None


def main() -> None:
    hidden, data, width = int(sys.argv[1]), np.load(sys.argv[2]), int(sys.argv[3])
    pairs = zip(data["images"], data["labels"], strict=True)
    batches = [jax.device_put(pair) for pair in pairs]
    begin = time.perf_counter()
    parts = make(*batches[0], hidden, width)
    first = [float(value) for value in train(*batches[0], **parts)]
    compiling = time.perf_counter() - begin
    seconds = [epoch(batches, parts) for _ in range(REPEATS)]
    last = [float(value) for value in train(*batches[0], **parts)]
    versions = {name: importlib.metadata.version(name) for name in ("pcx", "jax")}
    device = jax.devices()[0].device_kind
    more = dict(compiling=compiling, memory=memory())
    told = dict(seconds=seconds, first=first, last=last, device=device, batches=len(batches))
    print(json.dumps(told | more | versions))


if __name__ == "__main__":
    main()
