"""A run for `test_checkpoints.py` to kill: python train_and_save.py OUT [FOLDER].

Every chunk is one step, and every step is saved.
"""

import functools as ft
import json
import sys

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import optax

import jpc
from jpc._fit import run


def main(out, folder=None):
    run.CHUNK_SECONDS = 0.0
    rng = np.random.default_rng(0)
    data = rng.normal(size=(50, 8)), rng.integers(0, 3, 50)
    model = jpc.make_mlp(jr.key(0), 8, 16, 3, 3, "tanh")
    optim = optax.adam(optax.cosine_decay_schedule(1e-2, 30))
    state = dict(model=model, optim=optim, opt_state=optim.init(eqx.filter(model, eqx.is_array)))
    checkpoints = folder and jpc.Checkpoints(folder, resume=True, seconds=0.0, keep=2)
    fitted = jpc.fit(
        ft.partial(jpc.make_pc_step, inference=jpc.Descent(optax.sgd(0.1), 3)),
        state,
        data,
        epochs=3,
        batch_size=5,
        key=jr.key(1),
        test=data,
        evaluate=jpc.evaluate_discriminative,
        stop=jpc.EarlyStopping(),
        checkpoints=checkpoints,
        progress=False,
    )
    arrays = map(np.asarray, jax.tree.leaves(eqx.filter(fitted.state, eqx.is_array)))
    history = [{k: v for k, v in r.items() if "seconds" not in k} for r in fitted.history]
    np.savez(out, *arrays, history=json.dumps(history))


if __name__ == "__main__":
    main(*sys.argv[1:])
