"""Does `fit` cost anything? An epoch of it against one `lax.scan` over the same steps, in turns.

    python benchmarks/epoch.py [--epochs 5]

60,000 random images of MNIST's size, batches of 64, tanh 784-300x3-10, Equilibrium with 2 chords.
"""

import argparse
import functools as ft
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from common import BATCH, device

import jpc

METHOD = jpc.Equilibrium(chords=2, max_steps=0)
STEP = ft.partial(jpc.make_pc_step, inference=METHOD)


def scan(state, data):
    """A compiled function of nothing: an epoch written by hand, its order given."""
    arrays, rest = eqx.partition(state, eqx.is_array)
    order = jr.permutation(jr.key(0), len(data[1]))[: len(data[1]) // BATCH * BATCH]

    def body(data, arrays, rows):
        state = eqx.combine(arrays, rest)
        result = STEP(**state, output=data[1][rows], input=data[0][rows])
        return eqx.filter({name: result[name] for name in state}, eqx.is_array), result["loss"]

    @jax.jit
    def epoch(data, arrays, order):
        return jax.lax.scan(ft.partial(body, data), arrays, order)

    return lambda: jax.block_until_ready(epoch(data, arrays, order.reshape(-1, BATCH)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    rng = np.random.default_rng(0)
    x, labels = rng.random((60_000, 784), np.float32), rng.integers(0, 10, 60_000)
    model, optim = jpc.make_mlp(jr.key(0), 784, 300, 4, 10, "tanh"), optax.adam(1e-3)
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    state = dict(model=model, optim=optim, opt_state=opt_state)
    by_hand = scan(state, (jnp.asarray(x), jax.nn.one_hot(labels, 10)))
    by_hand()

    def compare(record):
        begin = time.perf_counter()
        by_hand()
        times = f"fit {record['seconds']:6.2f} s   scan {time.perf_counter() - begin:6.2f} s"
        print(f"epoch {record['epoch']}   {times}", flush=True)

    print(f"{device()}; the first epoch of fit includes its compilation")
    options = dict(epochs=parser.parse_args().epochs, batch_size=BATCH, key=jr.key(1))
    jpc.fit(STEP, state, (x, labels), progress=False, callbacks=[compare], **options)


if __name__ == "__main__":
    main()
