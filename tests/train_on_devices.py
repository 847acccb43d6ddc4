"""Trains on several devices, for `test_mesh.py`:

    python train_on_devices.py OUT DEVICES CASES [PROCESSES PROCESS PORT]

Writes what was learned in each of the cases (names with commas between them), without a mesh if
there is one device.
"""

import functools as ft
import json
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import optax
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, PartitionSpec

import jpc

RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(size=(44, 6)), RNG.integers(0, 4, 44)
ADAM = optax.adam(1e-2)


def network(key, *sizes):
    model = jpc.make_mlp(key, sizes[0], 8, 3, sizes[1], "tanh")
    return model, ADAM.init(eqx.filter(model, eqx.is_array))


def supervised():
    model, opt_state = network(jr.key(0), 6, 4)
    return dict(model=model, optim=ADAM, opt_state=opt_state)


def hybrid():
    pairs = [network(jr.key(0), 4, 6), network(jr.key(1), 6, 4)]
    (generator, amortiser), states = zip(*pairs, strict=True)
    return dict(generator=generator, amortiser=amortiser, optims=(ADAM,) * 2, opt_states=states)


def columns(name, array):
    """Halves of every matrix on the second axis of the mesh."""
    del name
    return PartitionSpec(None, "model") if array.ndim == 2 else PartitionSpec()


def batches():
    """What each process has to give of every batch."""
    share = 8 // jax.process_count()
    begin = share * jax.process_index()
    rows = [slice(i + begin, i + begin + share) for i in range(0, 40, 8)]
    return [(X[row], LABELS[row]) for row in rows]


def cases(mesh):
    pc = lambda **options: ft.partial(jpc.make_pc_step, **options)
    arrays, whole = (X, LABELS), dict(mesh=mesh)
    yield "flow", pc(max_t1=3.0), supervised(), arrays, whole
    yield "equilibrium", pc(inference=jpc.Equilibrium(max_steps=2)), supervised(), arrays, whole
    hpc = ft.partial(jpc.make_hpc_step, inference=jpc.Descent(optax.sgd(0.1), 3))
    yield "hybrid", hpc, hybrid(), (LABELS, X), whole | dict(metrics=("losses",))
    descent = pc(inference=jpc.Descent(optax.sgd(0.1), 3))
    yield "batches", descent, supervised(), batches(), whole | dict(classes=4)
    if mesh is not None:
        mesh = Mesh(np.reshape(mesh.devices, (-1, 2)), ("data", "model"))
    split = dict(mesh=mesh, sharding=None if mesh is None else columns)
    yield "split", descent, supervised(), arrays, split


def save(path, state, history):
    """On the first process; arrays that are not there as a whole are brought there."""
    whole = lambda x: x if x.is_fully_replicated else process_allgather(x, tiled=True)
    arrays = [np.asarray(whole(x)) for x in jax.tree.leaves(eqx.filter(state, eqx.is_array))]
    history = [{k: v for k, v in r.items() if "seconds" not in k} for r in history]
    if jax.process_index() == 0:
        np.savez(path.with_suffix(".npz"), *arrays)
        path.with_suffix(".json").write_text(json.dumps(history))


def train(out, mesh, names):
    for name, step, state, data, options in cases(mesh):
        if name not in names:
            continue
        given = dict(epochs=2, batch_size=8, key=jr.key(2)) | options
        if name in ("batches", "split"):
            given |= dict(test=data, evaluate=jpc.evaluate_discriminative)
            given["checkpoints"] = jpc.Checkpoints(out / name, resume=True)
            jpc.fit(step, state, data, **given | dict(epochs=1))
        fitted = jpc.fit(step, state, data, **given)
        save(out / name, *fitted)


def main(out, devices, names, processes=1, process=0, port=0):
    if int(processes) > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(process))
    assert jax.device_count() == int(devices)
    mesh = jax.make_mesh((int(devices),), ("data",)) if int(devices) > 1 else None
    train(Path(out), mesh, names.split(","))


if __name__ == "__main__":
    main(*sys.argv[1:])
