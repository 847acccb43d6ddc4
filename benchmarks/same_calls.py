"""Do the paper's calls give what the original implementation of the paper gives?

    python benchmarks/same_calls.py --original FOLDER [--out FILE.csv]

With FOLDER on the path `import original, jpc` is the original. The same calls on the same data run
once with each of the two, in processes of their own. For each call the table has the largest
difference of all its answers, relative to the largest number in each; docs/migration.md says where
the two mean different things.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

# Where the answers differ, and why: see docs/migration.md.
KNOWN = {
    "an adaptive solver": "ours also stops when the gradient is small",
    "recorded energies": "ours also stops when the gradient is small",
    "inference without an input": "other random numbers, of the same distribution",
    "hybrid": "ours halves the amortiser's squares too, and its losses are half sums, not means",
    "hessian, skips and decay": "ours is that of the energy (tests/test_theory.py)",
    "energy of the layers": "ours are in the order of the layers, theirs backwards",
    "weight_decay": "theirs leaves out layers written by hand",
    "spectral_penalty": "theirs leaves out layers written by hand",
    "activity_decay": "theirs counts what the network predicts at the output",
    "losses, norms": "ours has a norm for each layer, theirs for each part of one",
}


def calls() -> Iterator[tuple[str, Callable[[], Any]]]:  # noqa: PLR0915
    """Scripts as users of the original write them. The order of arguments is theirs."""
    import diffrax  # noqa: PLC0415
    import equinox as eqx  # noqa: PLC0415
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415
    import jax.random as jr  # noqa: PLC0415
    import optax  # noqa: PLC0415

    import jpc  # noqa: PLC0415

    key, rng = jr.PRNGKey(0), np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(8, 6)), jnp.float32)
    y = jax.nn.one_hot(np.arange(8) % 4, 4)
    arrays = lambda tree: eqx.filter(tree, eqx.is_array)

    def mlp(*sizes, act=jnp.tanh):
        layers = []
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            linear = eqx.nn.Linear(a, b, use_bias=False, key=jr.fold_in(key, i))
            first = eqx.nn.Lambda(act if i else lambda z: z)
            layers.append(eqx.nn.Sequential([first, linear]))
        return layers

    model, optim = mlp(6, 10, 10, 4), optax.adam(1e-3)
    state = optim.init((arrays(model), None))
    linear = mlp(6, 10, 10, 4, act=lambda z: z)
    generator, amortiser = mlp(4, 10, 10, 6, act=jax.nn.relu), mlp(6, 10, 10, 4, act=jax.nn.relu)
    sizes = [4, 10, 10, 6]
    fixed = dict(
        ode_solver=diffrax.Euler(), dt=1, stepsize_controller=diffrax.ConstantStepSize(), max_t1=20
    )

    def step(**options):
        new = jpc.make_pc_step(model, optim, state, y, input=x, **options)
        return new["loss"], arrays(new["model"])

    def discrete(model=model, skip_model=None, optim=optim, **options):
        start: Any = dict(options, skip_model=skip_model) if skip_model else options
        start = {k: v for k, v in start.items() if k != "loss_id"}
        params, acts = (model, skip_model), jpc.init_activities_with_ffwd(model, x, **start)
        infer = optax.sgd(0.5)
        infer_state, energies = infer.init(acts), []
        for _ in range(4):
            new = jpc.update_pc_activities(params, acts, infer, infer_state, y, input=x, **options)
            acts, infer_state = new["activities"], new["opt_state"]
            energies.append(new["energy"])
        begun = optim.init((arrays(model), skip_model))
        new = jpc.update_pc_params(params, acts, optim, begun, y, input=x, **options)
        return energies, acts[:-1], arrays(new["model"])

    def mupc():
        deep = jpc.make_mlp(key, 6, 10, 4, 4, "relu", use_bias=False, param_type="mupc")
        skips, named = jpc.make_skip_model(4), dict(param_type="mupc")
        return discrete(deep, skips, optax.sgd(0.1), loss_id="ce", **named)

    def adaptive():
        acts = jpc.init_activities_with_ffwd(model=model, input=x)
        ended = jpc.solve_inference(params=(model, None), activities=acts, output=y, input=x)
        return [z[-1] if z.ndim == 3 else z for z in ended][:-1]

    def recorded():
        acts = jpc.init_activities_with_ffwd(model, x)
        path = jpc.solve_inference((model, None), acts, y, input=x, record_iters=True, max_t1=20)
        end = jpc.get_t_max(path)
        energies = jpc.compute_infer_energies((model, None), path, end, y, x=x)
        return jnp.asarray(energies)[:, int(end) - 1]

    def generative():
        begun = optim.init((arrays(generator), None))
        new = jpc.make_pc_step(generator, optim, begun, x, input=y, **fixed)
        return new["loss"], arrays(new["model"])

    def unsupervised():
        begun, named = optim.init((arrays(generator), None)), dict(record_energies=True)
        named |= dict(key=key, layer_sizes=sizes, batch_size=8, max_t1=20)
        new = jpc.make_pc_step(generator, optim, begun, x, **named)
        return new["energies"][:, int(new["t_max"]) - 1]

    def hybrid():
        both = [optim.init((arrays(generator), None)), optim.init(arrays(amortiser))]
        new = jpc.make_hpc_step(generator, amortiser, [optim, optim], both, x, input=y, **fixed)
        return new["losses"], arrays(new["generator"]), arrays(new["amortiser"])

    def theory():
        weights = [layer[1].weight for layer in linear]
        params = (linear, None)
        yield "energy", lambda: jpc.linear_equilib_energy(params, x, y)
        yield (
            "energy's gradient",
            lambda: arrays(jpc.compute_linear_equilib_energy_grads(params, x, y)),
        )
        yield "rescaling", lambda: jpc.compute_linear_equilib_rescaling(params, x)
        yield "solution", lambda: jpc.compute_linear_activity_solution(linear, x, y)
        yield "hessian", lambda: jpc.compute_linear_activity_hessian(weights)
        decay: Any = dict(use_skips=True, param_type="mupc", activity_decay=True)
        yield (
            "hessian, skips and decay",
            lambda: jpc.compute_linear_activity_hessian(weights, **decay),
        )

    def energies():
        params, acts = (model, None), [z + 0.1 for z in jpc.init_activities_with_ffwd(model, x)]
        energy = lambda **options: jpc.pc_energy_fn(params, acts, y, x=x, **options)
        yield "energy of the layers", lambda: energy(record_layers=True)
        yield "cross-entropy", lambda: energy(loss="ce")
        for name in ("weight_decay", "spectral_penalty", "activity_decay"):
            yield name, lambda name=name: energy(**{name: 0.1}) - energy()
        grads = lambda: jpc.compute_pc_param_grads(params, acts, y, x=x, gamma=None)
        yield "learning gradient", lambda: arrays(grads())

    def flow():
        acts = jpc.init_activities_with_ffwd(model, x)
        controller = diffrax.PIDController(rtol=1e-3, atol=1e-3)
        args = ((model, None), y, x, "mse", "sp", 0.0, 0.0, 0.0, None, None, controller)
        return jpc.neg_pc_activity_grad(0.0, acts, args)[:-1]

    def utilities():
        acts = jpc.init_activities_with_ffwd(model, x)
        losses = jpc.mse_loss(acts[-1], y), jpc.cross_entropy_loss(acts[-1], y)
        norms = jpc.compute_activity_norms(acts), jpc.compute_param_norms((model, None))
        return losses, jpc.compute_accuracy(y, acts[-1]), norms

    yield "make_pc_step", step
    yield "make_pc_step, Euler", lambda: step(**fixed)
    yield "make_pc_step, cross-entropy", lambda: step(loss_id="ce", **fixed)
    yield "steps by an optimiser", discrete
    yield "muPC, steps by an optimiser", mupc
    yield "an adaptive solver", adaptive
    yield "recorded energies", recorded
    yield "generative", generative
    yield "inference without an input", unsupervised
    yield "hybrid", hybrid
    yield from theory()
    yield from energies()
    yield "neg_pc_activity_grad", flow
    yield "losses, norms", utilities


def answer(out: str) -> None:
    """All answers, as numbers; or what was said of a failure."""
    import jax  # noqa: PLC0415

    arrays, errors = {}, {}
    for name, fn in calls():
        try:
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(fn())]
            arrays |= {f"{name}/{i}": leaf for i, leaf in enumerate(leaves)}
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
    np.savez(out, names=[name for name, _ in calls()], errors=json.dumps(errors), **arrays)


def run(path: str, out: Path) -> dict[str, Any]:
    """The answers with what is on this path, in an empty folder."""
    script = Path(__file__).resolve()
    begin = f"import sys; sys.path.insert(0, {str(script.parent)!r}); "
    begin += "import original; " if path else ""
    code = f"{begin}import same_calls; same_calls.answer({str(out)!r})"
    env = dict(os.environ, PYTHONPATH=path or str(script.parents[1]), JAX_PLATFORMS="cpu")
    subprocess.run([sys.executable, "-c", code], check=True, env=env, cwd=out.parent)
    return dict(np.load(out, allow_pickle=False))


def compare(name: str, theirs: dict, ours: dict) -> str:
    for who, answers in (("theirs", theirs), ("ours", ours)):
        said = json.loads(str(answers["errors"])).get(name)
        if said is not None:
            return f"{who}: {said}"
    pick = lambda answers: [v for k, v in answers.items() if k.startswith(f"{name}/")]
    one, two = pick(theirs), pick(ours)
    if [a.shape for a in one] != [a.shape for a in two]:
        return f"shapes {[a.shape for a in one]} and {[a.shape for a in two]}"
    apart = lambda a, b: np.max(np.abs(a - b)) / max(np.max(np.abs(a)), 1e-9)
    return f"{max(apart(a, b) for a, b in zip(one, two, strict=True)):.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--original", type=Path, required=True, help="its folder")
    parser.add_argument("--out", type=Path, help="a csv to add the differences to")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        theirs = run(str(args.original.resolve()), Path(folder) / "theirs.npz")
        ours = run("", Path(folder) / "ours.npz")
    print("| call | difference | |\n|---|---|---|")
    from common import write_rows  # noqa: PLC0415

    for name in map(str, ours["names"]):
        found = compare(name, theirs, ours)
        write_rows(args.out, ("call", "difference"), [(name, found)])
        print(f"| {name} | {found} | {KNOWN.get(name, '')} |")


if __name__ == "__main__":
    main()
