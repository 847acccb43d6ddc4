"""How long does one epoch of MNIST take with backpropagation, with predictive coding, and with
the peer library pcx?

    JPC_DATA_DIR=... python benchmarks/epoch.py [--batches 50] [--peer PYTHON]
        [--out FILE.csv]

A tanh network with 300 units a layer, batch 64, Adam, float32; 60,000 images make 937 batches.
Ours are whole epochs in one scan on the device, those of `fit` whole epochs of `jpc.fit` with its
shuffling (the median of its later epochs); the rows that say so are a Python loop over the jitted
step. The paper's settings are those with which it compares Heun on MNIST (T = 20, 50, 200
for 3, 5, 10 hidden layers, first step 0.05, one flow for the whole batch). Times are medians of
epochs taken in turns, after a first one. pcx takes 20 steps of gradient descent, in a Python loop
over its jitted step, and runs right after the others in a process of its own: `peer_pcx.py`.
"""

import argparse
import functools as ft
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from common import (
    BATCH,
    add_out,
    backprop,
    batches,
    device,
    interleaved,
    network,
    record,
    start,
    train,
    train_in_groups,
)

import jpc

EPOCH = 60_000 // BATCH
PAPER_T = {3: 20.0, 5: 50.0, 10: 200.0}
GROUP = 10
GROUPED = f"Equilibrium, 2 chords, S every {GROUP} batches"
LOOPS = ("Heun, the paper's settings, Python loop", "Heun, T = 20, Python loop")
EXACT = jpc.Equilibrium(chords=2, max_steps=0, throw=False)
PID = dfx.PIDController(rtol=1e-3, atol=1e-3)


def paper(hidden: int) -> jpc.GradientFlow:
    t1 = PAPER_T[hidden]
    return jpc.GradientFlow(t1=t1, dt0=0.05, controller=PID, reduction="mean", throw=False)


def begin(hidden: int):
    model = jpc.make_mlp(jr.key(0), 784, 300, hidden + 1, 10, "tanh")
    optim = optax.adam(1e-3)
    return model, optim, optim.init((eqx.filter(model, eqx.is_array), None))


def scanned(inference: jpc.AbstractInference, hidden: int, images, labels):
    """A compiled function of nothing: one epoch of `make_pc_step` in one scan."""
    model, optim, state = begin(hidden)
    arrays, static = eqx.partition(model, eqx.is_array)

    def step(carry, batch):
        (arrays, state), (x, y) = carry, batch
        model = eqx.combine(arrays, static)
        result = jpc.make_pc_step(model, optim, state, y, x, inference=inference)
        return (eqx.filter(result["model"], eqx.is_array), result["opt_state"]), None

    epoch = jax.jit(lambda carry, data: jax.lax.scan(step, carry, data)[0])
    return lambda: epoch((arrays, state), (images, labels))


def looped(inference: jpc.AbstractInference, hidden: int, images, labels):
    """The same in a Python loop, the batches already on the device."""
    model, optim, state = begin(hidden)
    data = list(zip(images, labels, strict=True))

    def epoch():
        result = dict(model=model, opt_state=state)
        for x, y in data:
            result = jpc.make_pc_step(
                result["model"], optim, result["opt_state"], y, x, inference=inference
            )
        return result["model"]

    return epoch


def by_backprop(model, optim, opt_state, output, input, key):
    """A step of the shape that `fit` takes."""
    del key
    params = (eqx.filter(model, eqx.is_array), None)
    grads = (backprop(model, input, output), None)
    updates, opt_state = optim.update(grads, opt_state, params)
    model = eqx.apply_updates(model, updates[0])
    return dict(model=model, optim=optim, opt_state=opt_state)


def by_groups(model, optim, opt_state, output, input, key):
    """Another: several batches in one, with one matrix S for all of them."""
    del key
    groups = [a.reshape(GROUP, BATCH, *a.shape[1:]) for a in (input, output)]
    first = start([jpc.Layer(layer) for layer in model], *(a[0] for a in groups))
    method = EXACT.prepare(jpc.PCEnergy(), model, *first)
    arrays, static = eqx.partition(model, eqx.is_array)

    def step(carry, batch):
        (arrays, state), (x, y) = carry, batch
        model = eqx.combine(arrays, static)
        result = jpc.make_pc_step(model, optim, state, y, x, inference=method)
        return (eqx.filter(result["model"], eqx.is_array), result["opt_state"]), result["loss"]

    (arrays, opt_state), loss = jax.lax.scan(step, (arrays, opt_state), groups)
    model = eqx.combine(arrays, static)
    return dict(model=model, optim=optim, opt_state=opt_state, loss=jnp.mean(loss))


def fitted(step, hidden: int, data, repeats: int, *, group: int = 1, metrics=("loss",)) -> float:
    """The median time of an epoch of `fit`."""
    model, optim, opt_state = begin(hidden)
    x, y = (a.reshape(-1, a.shape[-1]) for a in data)
    state = dict(model=model, optim=optim, opt_state=opt_state)
    options = dict(epochs=repeats + 2, batch_size=group * BATCH, key=jr.key(1), progress=False)
    history = jpc.fit(step, state, (x, y), metrics=metrics, **options).history
    return statistics.median(record["seconds"] for record in history[2:])


def methods(hidden: int, data, quick: bool) -> dict:
    flow = jpc.GradientFlow(controller=PID, throw=False)
    exact = {
        "backpropagation": train(backprop, network(hidden), *data),
        "Equilibrium, 2 chords": scanned(EXACT, hidden, *data),
        GROUPED: train_in_groups(EXACT, network(hidden), *data, group=GROUP),
    }
    return (
        exact
        if quick
        else exact
        | {
            "Heun, the paper's settings": scanned(paper(hidden), hidden, *data),
            LOOPS[0]: looped(paper(hidden), hidden, *data),
            LOOPS[1]: looped(flow, hidden, *data),
        }
    )


def peer(args: argparse.Namespace, hidden: int, data) -> dict:
    """What `peer_pcx.py` measures, with the same data."""
    script = Path(__file__).with_name("peer_pcx.py")
    # Its packages are not ours, and the device's memory is mostly taken.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if args.peer_path:
        env["PYTHONPATH"] = args.peer_path
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, images=data[0], labels=data[1])
        command = [args.peer, str(script), str(hidden), str(path), "300"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(args: argparse.Namespace, hidden: int, data) -> None:
    times = interleaved(methods(hidden, data, args.quick), args.repeats)
    # Batches that do not fill a group are left out.
    times[GROUPED] *= args.batches / (args.batches // GROUP * GROUP)
    fits = (
        {}
        if args.no_fit
        else {
            "fit, backpropagation": fitted(by_backprop, hidden, data, args.repeats, metrics=()),
            "fit, Equilibrium, 2 chords": fitted(
                ft.partial(jpc.make_pc_step, inference=EXACT), hidden, data, args.repeats
            ),
            "fit, Equilibrium, default": fitted(
                ft.partial(jpc.make_pc_step, inference=jpc.Equilibrium()),
                hidden,
                data,
                args.repeats,
            ),
            f"fit, {GROUPED}": fitted(by_groups, hidden, data, args.repeats, group=GROUP)
            * (args.batches / (args.batches // GROUP * GROUP)),
        }
    )
    times |= fits
    note = "pcx: not installed, pass --peer"
    if args.peer:
        answer = peer(args, hidden, data)
        times["pcx, T = 20, Python loop"] = statistics.median(answer["seconds"])
        note = f"pcx {answer['pcx']} with JAX {answer['jax']} on {answer['device']}"
    scaled = "" if args.batches == EPOCH else f": {args.batches} batches, scaled to {EPOCH}"
    print(f"\n{hidden} hidden layers{scaled}")
    times = {name: seconds * EPOCH / args.batches for name, seconds in times.items()}
    report(times)
    for name, seconds in times.items():
        record(args.out, hidden=hidden, method=name, batches=args.batches, seconds=seconds)
    print(f"  {note}")


def report(times: dict[str, float]) -> None:
    base, exact = times["backpropagation"], times[GROUPED]
    for name, seconds in times.items():
        print(f"  {name:44s} {seconds:9.3f} s an epoch {seconds / base:8.2f} x backpropagation")
    print(f"  exact inference / backpropagation: {exact / base:.2f} (to reach: at most 2)")
    if "fit, backpropagation" in times:
        fits = times[f"fit, {GROUPED}"] / times["fit, backpropagation"]
        print(f"  the same with fit: {fits:.2f}")
    for name in LOOPS if LOOPS[0] in times else ():
        print(f"  {name} / exact inference: {times[name] / exact:.1f} (to reach: at least 15)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    count = 50 if jax.default_backend() == "cpu" else EPOCH
    help_batches = f"at least {GROUP}; {count} on this device"
    parser.add_argument("--batches", type=int, default=count, help=help_batches)
    parser.add_argument("--hidden", type=int, nargs="+", default=[3, 5, 10], choices=PAPER_T)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="without Heun")
    parser.add_argument("--no-fit", action="store_true", help="without fit")
    parser.add_argument("--peer", help="a Python that has pcx, see peer_pcx.py")
    parser.add_argument("--peer-path", help="the peer's PYTHONPATH, where it has no environment")
    add_out(parser)
    args = parser.parse_args()
    print(device())
    data = batches(BATCH, args.batches)
    for hidden in args.hidden:
        measure(args, hidden, data)


if __name__ == "__main__":
    main()
