"""What does each variant cost, and what does it learn in one epoch?

    JPC_DATA_DIR=... python benchmarks/variants.py [--data mnist] [--seeds 3] [--out FILE]

One network, 784-128-128-10 tanh, batch 64, Adam; the same seeds for all. The cost is the median
time of a step on a network that has been trained for that epoch, in turns with backpropagation's,
as a ratio. The accuracy is of a feedforward pass over the test set after one epoch, mean and
standard deviation over seeds. Learning rates are in the table: 1e-3, but a tenth of it for
incremental predictive coding, which takes 20 steps a batch, and 0.1 for muPC, whose weights are
larger. Bidirectional and hybrid networks have two chains, from labels to images and back; their
accuracy is that of the second. `--out` writes every accuracy, and every time, into a csv.
"""

import argparse
import functools as ft
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from common import add_out, record

import jpc
import jpc.data

BATCH, WIDTH, REPEATS = 64, 128, 21


class Variant(NamedTuple):
    """A step for `fit`, its state for a seed, how to evaluate it, and its learning rate."""

    step: Callable
    begin: Callable[[int, optax.GradientTransformation], dict[str, Any]]
    evaluate: Callable = jpc.evaluate_discriminative
    rate: float = 1e-3


def make(seed: int, *sizes: int, layer: Callable = lambda z: z) -> list:
    first, last = sizes or (784, 10)
    model = jpc.make_mlp(jr.key(seed), first, WIDTH, 3, last, "tanh", use_bias=True)
    return [layer(part) for part in model]


def begin(seed: int, optim, layer=lambda z: z) -> dict[str, Any]:
    model = make(seed, layer=layer)
    state = optim.init(eqx.filter(model, eqx.is_inexact_array))
    return dict(model=model, optim=optim, opt_state=state)


def begin_pair(seed: int, optim, names: tuple[str, str], turn: int) -> dict[str, Any]:
    """A chain from labels to images and one back, its layers in the order `turn`."""
    models = make(seed, 10, 784), make(seed, 784, 10)[::turn]
    states = tuple(optim.init(eqx.filter(model, eqx.is_inexact_array)) for model in models)
    return dict(zip(names, models, strict=True)) | dict(optims=(optim, optim), opt_states=states)


BOTH = ft.partial(begin_pair, names=("top_down_model", "bottom_up_model"), turn=-1)
HYBRID = ft.partial(begin_pair, names=("generator", "amortiser"), turn=1)


def begin_mupc(seed: int, optim) -> dict[str, Any]:
    sizes = (784, WIDTH, 3, 10)
    model, skips = jpc.make_residual_mlp(jr.key(seed), *sizes, "tanh", param_type="mupc")
    state = optim.init(eqx.filter((model, skips), eqx.is_inexact_array))
    return dict(model=model, skip_model=skips, optim=optim, opt_state=state)


def evaluate_hybrid(generator, amortiser, output, input, **_) -> dict[str, jax.Array]:
    return jpc.evaluate_discriminative(amortiser, output=output, input=input)


def begin_graph(seed: int, optim) -> dict[str, Any]:
    params = dict(zip(NAMES, make(seed), strict=True))
    state = optim.init(eqx.filter(params, eqx.is_inexact_array))
    return dict(params=params, optim=optim, opt_state=state)


def pose_graph(params, output, input, key):
    return jpc.pose(GRAPH, params, {"x": input, "y": output})


def evaluate_graph(params, output, input, **_) -> dict[str, jax.Array]:
    return jpc.evaluate_discriminative(
        [params[name] for name in NAMES], output=output, input=input
    )


@eqx.filter_jit
def backprop(model, optim, opt_state, output, input, key=None):
    def loss(model):
        predict = lambda x: jpc.feedforward(model, x)[-1]
        return jpc.mse_loss(jax.vmap(predict)(input), output)

    value, grads = eqx.filter_value_and_grad(loss)(model)
    updates, opt_state = optim.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
    model = eqx.apply_updates(model, updates)
    return dict(model=model, optim=optim, opt_state=opt_state, loss=value)


def turned(step: Callable) -> Callable:
    """Bidirectional networks go from labels to images: the label is their input."""
    return lambda output, input, **state: step(output=input, input=output, **state)


PC = jpc.make_pc_step
NAMES = ("h", "g", "y")
GRAPH = jpc.GraphEnergy({"h": ["x"], "g": ["h"], "y": ["g"]})
SAMPLES = jpc.MonteCarlo(jpc.Descent(1e-4, 20), jpc.Langevin(t1=5e-4, dt=1e-5), 5)
ADAM = jpc.Descent(optax.adam(0.1), 20, throw=False)
VARIANTS = {
    "backpropagation": Variant(backprop, begin),
    "PC, the paper's flow": Variant(ft.partial(PC, max_t1=20.0), begin),
    "PC, each its own flow": Variant(ft.partial(PC, reduction="sum"), begin),
    "PC, 20 steps of 0.1": Variant(ft.partial(PC, inference=jpc.Descent(0.1, 20)), begin),
    "PC, exact": Variant(ft.partial(PC, inference=jpc.Equilibrium()), begin),
    "PC, exact, cross-entropy, precision 0.1": Variant(
        ft.partial(PC, inference=jpc.Equilibrium(), loss_id="ce", output_energy_scaling=0.1),
        begin,
        ft.partial(jpc.evaluate_discriminative, loss_id="ce"),
    ),
    "PC, exact, bits": Variant(
        ft.partial(PC, inference=jpc.Equilibrium(), loss_id="bernoulli"), begin
    ),
    "incremental PC": Variant(jpc.make_ipc_step, begin, rate=1e-4),
    "error coordinates, 20 steps of 0.1": Variant(
        ft.partial(PC, inference=jpc.InErrors(jpc.Descent(0.1, 20))), begin
    ),
    "learned precisions": Variant(
        ft.partial(PC, energy=jpc.PrecisionEnergy(), inference=jpc.Equilibrium()),
        ft.partial(begin, layer=lambda part: jpc.Precise(part, jnp.zeros(()))),
    ),
    "Monte Carlo PC, precision 1,000": Variant(
        ft.partial(PC, energy=jpc.PCEnergy(precision=[1e3] * 3), inference=SAMPLES), begin
    ),
    "bidirectional PC": Variant(
        turned(ft.partial(jpc.make_bpc_step, energy=jpc.BPCEnergy(1e-3))),
        BOTH,
        turned(jpc.evaluate_bpc),
    ),
    **{
        f"predictive dendrites, {part:g} of the error": Variant(
            turned(ft.partial(jpc.make_bpc_step, energy=jpc.BPCEnergy(1e-3, 1.0, part))),
            BOTH,
            turned(jpc.evaluate_bpc),
        )
        for part in (0.0, 0.1)
    },
    "hybrid PC": Variant(
        turned(ft.partial(jpc.make_hpc_step, inference=ADAM)), HYBRID, evaluate_hybrid
    ),
    "muPC": Variant(
        ft.partial(PC, inference=jpc.Equilibrium(), param_type="mupc"),
        begin_mupc,
        ft.partial(jpc.evaluate_discriminative, param_type="mupc"),
        rate=0.1,
    ),
    "the chain as a graph, exact": Variant(
        ft.partial(jpc.make_step, energy=GRAPH, inference=jpc.Equilibrium(), pose=pose_graph),
        begin_graph,
        evaluate_graph,
    ),
}


def train(variant: Variant, data, seed: int):
    images, labels = data.train
    state = variant.begin(seed, optax.adam(variant.rate))
    named: Any = dict(epochs=1, batch_size=BATCH, key=jr.key(seed), metrics=(), progress=False)
    test: Any = dict(test=data.test, evaluate=variant.evaluate)
    fitted = jpc.fit(variant.step, state, (images, labels), **named, **test)
    return fitted.state, fitted.history[-1]["test_acc"]


def time_steps(states: dict[str, dict], data) -> dict[str, float]:
    """Medians of single steps, in turns."""
    images = jnp.asarray(data.train[0][:BATCH], jnp.float32)
    batch = dict(input=images, output=jax.nn.one_hot(data.train[1][:BATCH], 10), key=jr.key(0))
    steps = {name: eqx.filter_jit(ft.partial(VARIANTS[name].step, **batch)) for name in states}
    seconds = {name: [] for name in states}
    for _ in range(REPEATS + 1):
        for name, step in steps.items():
            began = time.perf_counter()
            jax.block_until_ready(eqx.filter(step(**states[name]), eqx.is_array))
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", nargs="+", default=["mnist", "fashion-mnist"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(VARIANTS))
    add_out(parser)
    args = parser.parse_args()
    sets = [jpc.data.load(name, flatten=True, download=False) for name in args.data]
    states, rows, kept = {}, {}, []
    for name in dict.fromkeys(["backpropagation", *args.only]):
        rows[name] = []
        for data in sets:
            ended = [train(VARIANTS[name], data, seed) for seed in range(args.seeds)]
            states.setdefault(name, ended[0][0])
            scores = [score for _, score in ended]
            kept += [(name, data.name, seed, score) for seed, score in enumerate(scores)]
            rows[name].append(f"{np.mean(scores):.1f} +- {np.std(scores):.1f}")
        print(f"# {name}: {rows[name]}", flush=True)
    times = time_steps(states, sets[0])
    base = times["backpropagation"]
    for name, dataset, seed, score in kept:
        ms, ratio = 1e3 * times[name], times[name] / base
        run = dict(variant=name, data=dataset, seed=seed, accuracy=score)
        record(args.out, **run, rate=VARIANTS[name].rate, ms=ms, ratio=ratio)
    print(f"\n| variant | learning rate | step / backpropagation | {' | '.join(args.data)} |")
    print("|---|---|---|" + "---|" * len(sets))
    for name, scores in rows.items():
        ratio = times[name] / base
        print(f"| {name} | {VARIANTS[name].rate:g} | {ratio:.1f} | {' | '.join(scores)} |")


if __name__ == "__main__":
    main()
