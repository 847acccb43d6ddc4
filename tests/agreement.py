r"""Do machines and versions agree? The same numbers here and elsewhere, in one table.

    python tests/agreement.py                      # float64, and float32 on 1 and 8 devices, here
    python tests/agreement.py --environments DIR   # ... and with Python 3.11 to 3.13 and JAX's
                                                   # oldest and newest version, installed in DIR
    python tests/agreement.py --write h200.json    # the numbers of one machine, on that machine
    python tests/agreement.py --write h200.json --processes 12 --seconds 55   # ... in a hurry
    python tests/agreement.py h200.json            # the table, with a column for these numbers
    python tests/agreement.py --compare A B C      # the table of files, relative to the first
    ... --out FILE.csv                             # writes the entries of the table, too

What is compared are the `QUANTITIES`: energies, equilibria, learning gradients, a short training,
a convolutional network, a graph with masks, the theory. All weights and data are drawn by NumPy.
An entry of the table is a relative difference, $\lVert a - b \rVert / \lVert b \rVert$, of float32
to float64 on one CPU. A tolerance is what rounding may do: to one evaluation (1e-6, eight times
what float32 can tell apart), to gradients through several layers or steps (5e-6), to a method that
stops by a tolerance of its own (that one, 1e-4), to 20 steps of training (1e-4).

Compiling is what takes long. Several processes share the quantities out; after `--seconds` what
there is by then is written: an entry that is missing is said to be.

Matrix products are precise, unless `--matmul default` leaves them to the machine: a GPU may then
round what it multiplies (TF32 has 10 bits).
"""

import argparse
import csv
import functools as ft
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import diffrax as dfx  # noqa: E402
import equinox as eqx  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import jax.random as jr  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import jpc  # noqa: E402

ONCE, GRADIENT, SOLVED, TRAINED = 1e-6, 5e-6, 1e-4, 1e-4
ENVIRONMENTS = [("3.11", "oldest"), ("3.11", "newest"), ("3.12", "newest"), ("3.13", "newest")]
QUANTITIES: dict[str, tuple[float, Callable[[], Any]]] = {}
EXACT = jpc.Equilibrium(rtol=SOLVED)
BATCH = 8
_MOST = 256  # Numbers kept of an array.


def quantity(name: str, tolerance: float) -> Callable[[Callable], Callable]:
    def add(fn: Callable) -> Callable:
        QUANTITIES[name] = tolerance, fn
        return fn

    return add


# --- problems ---


def draw(seed: int, *shape: int) -> jax.Array:
    """Normal numbers for each example of a batch, shared out over the devices."""
    numbers = jnp.asarray(np.random.default_rng(seed).normal(size=(BATCH, *shape)))
    return jax.device_put(numbers, NamedSharding(mesh(), PartitionSpec("data")))


def mesh() -> Mesh:
    return Mesh(np.asarray(jax.devices()), ("data",))


def classes(seed: int, count: int) -> jax.Array:
    return jax.nn.one_hot(jnp.argmax(draw(seed, count), axis=1), count)


def fill(model: Any, seed: int) -> Any:
    """A model with weights from NumPy, of the usual size."""
    rng = np.random.default_rng(seed)

    def one(leaf: Any) -> Any:
        if not eqx.is_inexact_array(leaf):
            return leaf
        return jnp.asarray(rng.normal(size=leaf.shape) * (leaf.shape[0] / leaf.size) ** 0.5)

    return jax.tree.map(one, model)


def perceptron(act: str) -> tuple[Any, jax.Array, jax.Array]:
    """A model, inputs and outputs."""
    model = jpc.make_mlp(jr.key(0), 12, 16, 4, 5, act, use_bias=act != "linear")
    return fill(model, 0), draw(1, 12), classes(2, 5)


def hidden() -> list[jax.Array]:
    return [draw(seed, 16) for seed in (3, 4, 5)]


def learn_from(energy: Any, params: Any, nodes: Any, clamps: Any, inference: Any) -> Any:
    """The states at the end of inference, and the gradient of learning from them."""
    inferred = inference(energy, params, nodes, clamps)
    lesson, states = inferred.lesson or (energy, inferred.nodes)
    return inferred.nodes, learning_gradient(lesson, params, states, clamps)


@eqx.filter_jit
def learning_gradient(energy: Any, *posed: Any) -> Any:
    return arrays(eqx.filter_grad(energy)(*posed))


@eqx.filter_jit
def activity_gradient(energy: Any, *posed: Any) -> Any:
    return jax.grad(energy, argnums=1)(*posed)


def chain(act: str, inference: Any, loss: Any = jpc.squared_error) -> Any:
    model, x, y = perceptron(act)
    start = jpc.feedforward_batch(model, x)[:-1]
    return learn_from(jpc.PCEnergy(loss), model, *jpc.clamp(start, y, x), inference)


def arrays(tree: Any) -> Any:
    return eqx.filter(tree, eqx.is_array)


# --- what is compared ---


@quantity("energies of a chain", ONCE)
def _energies() -> Any:
    model, x, y = perceptron("tanh")
    precision = [2.0, jnp.linspace(0.1, 2.0, 16), 0.5, 3.0]
    energies = jpc.PCEnergy(precision=precision), jpc.PCEnergy(jpc.cross_entropy)
    return [energy.layerwise(model, *jpc.clamp(hidden(), y, x)) for energy in energies]


@quantity("its gradients", GRADIENT)
def _gradients() -> Any:
    model, x, y = perceptron("tanh")
    energy = jpc.PCEnergy(jpc.cross_entropy) + jpc.WeightDecay(0.1)
    posed = model, *jpc.clamp(hidden(), y, x)
    return activity_gradient(energy, *posed), learning_gradient(energy, *posed)


@quantity("equilibrium, tanh", SOLVED)
def _smooth() -> Any:
    return chain("tanh", EXACT)


@quantity("equilibrium, relu, cross-entropy", SOLVED)
def _rectified() -> Any:
    return chain("relu", EXACT, jpc.cross_entropy)


@quantity("flow, 50 steps", GRADIENT)
def _flow() -> Any:
    return chain("tanh", jpc.GradientFlow(dfx.Heun(), 5.0, 0.1, dfx.ConstantStepSize()))


@quantity("flow, adaptive", SOLVED)
def _adaptive() -> Any:
    control = dfx.PIDController(rtol=SOLVED, atol=SOLVED)
    return chain("tanh", jpc.GradientFlow(dfx.Heun(), 3.0, controller=control))


@quantity("descent in the errors, 20 steps", GRADIENT)
def _errors() -> Any:
    model, x, y = perceptron("tanh")
    start = jax.tree.map(jnp.zeros_like, hidden())
    descent = jpc.Descent(optax.sgd(0.1), 20)
    return learn_from(jpc.EPCEnergy(jpc.PCEnergy()), model, *jpc.clamp(start, y, x), descent)


@quantity("nudged rule", GRADIENT)
def _nudged() -> Any:
    return chain("tanh", jpc.Nudged(strength=1.0, shared=None), jpc.cross_entropy)


class Mix(eqx.Module):
    """A layer of several states."""

    linear: eqx.nn.Linear

    def __call__(self, *z: jax.Array) -> jax.Array:
        return self.linear(jnp.tanh(jnp.concatenate(z)))


@quantity("graph with masks", SOLVED)
def _graph() -> Any:
    parents = {"h": ["x"], "label": ["h"], "image": ["h", "x"]}
    sizes = {"x": 4, "h": 6, "label": 3, "image": 7}
    enters = {name: sum(sizes[p] for p in given) for name, given in parents.items()}
    linear = lambda name: eqx.nn.Linear(enters[name], sizes[name], key=jr.key(0))
    params = fill({name: Mix(linear(name)) for name in parents}, 20)
    loss, precision = {"label": jpc.cross_entropy}, {"h": 2.0, "image": 0.5, "x": 1.0}
    energy = jpc.GraphEnergy(parents, loss=loss, precision=precision)
    given = {"label": classes(21, 3), "image": draw(22, 7), "x": draw(23, 4)}
    masks = {"image": draw(24, 7) > 0, "x": draw(25, 4) > 0}
    return learn_from(energy, params, *jpc.pose(energy, params, given, masks=masks), EXACT)


@quantity("convolutions (VGG5), descent, 10 steps", GRADIENT)
def _convolutions() -> Any:
    named = dict(size="vgg5", channels=4, pool="average")
    model = fill(jpc.make_cnn(jr.key(0), (1, 16, 16), 5, "gelu", **named), 30)
    x, y = draw(31, 1, 16, 16), classes(32, 5)
    posed = jpc.clamp(jpc.feedforward_batch(model, x)[:-1], y, x)
    return learn_from(jpc.PCEnergy(), model, *posed, jpc.Descent(optax.sgd(0.1), 10))


@quantity("theory of linear networks", GRADIENT)
def _theory() -> Any:
    model, x, y = perceptron("linear")
    named = dict(activity_decay=0.1, output_energy_scaling=2.0)
    params, weights = (model, None), [layer.layers[1].weight for layer in model]
    return (
        jpc.linear_equilib_energy(params, x, y, return_rescaling=True, **named),
        arrays(jpc.compute_linear_equilib_energy_grads(params, x, y, **named)),
        jpc.compute_linear_activity_hessian(weights, **named),
        jpc.compute_linear_activity_solution(model, x, y, **named),
    )


@quantity("20 steps of training", TRAINED)
def _training() -> Any:
    model, optim = perceptron("tanh")[0], optax.adam(1e-2)
    state = dict(model=model, optim=optim, opt_state=optim.init(arrays(model)))
    step = ft.partial(jpc.make_pc_step, inference=jpc.Descent(optax.sgd(0.1), 10))
    x = np.random.default_rng(40).normal(size=(10 * BATCH, 12))
    named: Any = dict(epochs=2, batch_size=BATCH, key=jr.key(1), progress=False)
    named |= dict(mesh=mesh()) if jax.device_count() > 1 else {}
    fitted = jpc.fit(step, state, (x, np.argmax(x[:, :5], axis=1)), **named)
    return [row["loss"] for row in fitted.history], arrays(fitted.state["model"])


# --- one environment ---


def write(path: Path, matmul: str, names: list[str]) -> None:
    """Again after each quantity, so that what there is can be read at any time."""
    numbers = {}
    for name in names:
        begin = time.monotonic()
        with jax.default_matmul_precision(matmul):
            numbers[name] = _flat(QUANTITIES[name][1]())
        _save(path, {"environment": describe(matmul), "numbers": numbers})
        print(f"{time.monotonic() - begin:4.0f} s  {name}", file=sys.stderr, flush=True)


def write_together(path: Path, matmul: str, processes: int, seconds: float) -> None:
    """The same by several processes, that share one device, and for so long."""
    names, end = list(QUANTITIES), time.monotonic() + seconds
    shares = [share for i in range(processes) if (share := names[i::processes])]
    env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{i}.json") for i in range(len(shares))]
        command = [sys.executable, __file__, "--matmul", matmul]
        commands = [
            [*command, "--write", p, "--part", *s] for p, s in zip(paths, shares, strict=True)
        ]
        started = [subprocess.Popen(command, env=env) for command in commands]
        for process in started:
            _end_by(process, end)
        files = [json.loads(p.read_text()) for p in paths if p.exists()]
    numbers = {name: found for file in files for name, found in file["numbers"].items()}
    _save(path, {"environment": files[0]["environment"] if files else "", "numbers": numbers})
    missing = [name for name in names if name not in numbers]
    print(f"{path}: {len(numbers)} of {len(names)}", *missing, sep="\n  missing: ")


def _end_by(process: subprocess.Popen, end: float) -> None:
    try:
        process.wait(max(end - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _save(path: Path, found: dict[str, Any]) -> None:
    """At once: no one reads half of it."""
    path.with_suffix(".part").write_text(json.dumps(found))
    path.with_suffix(".part").replace(path)


def _flat(tree: Any) -> list[float]:
    """Some of the numbers of a tree, to as many digits as tell float64 from float32."""
    leaves = [np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)]
    kept = np.concatenate([leaf[:: -(-leaf.size // _MOST)] for leaf in leaves])
    return [float(f"{number:.10g}") for number in kept]


def describe(matmul: str) -> str:
    kind = jax.devices()[0].device_kind
    kind = platform.machine() if kind == "cpu" else kind
    precision = str(jnp.result_type(float))
    words = [precision, f"{jax.device_count()} x {kind}"]
    words += [f"Python {platform.python_version()}", f"JAX {jax.__version__}"]
    return ", ".join(words if matmul == "highest" else [*words, f"{matmul} products"])


def run(python: str, path: Path, **variables: str) -> Path:
    """The same in a process of its own."""
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "PYTHONPATH")}
    subprocess.run([python, __file__, "--write", path], env=env | variables, check=True)
    return path


# --- other environments ---


def install(folder: Path, version: str, which: str) -> str:
    """A Python that has what the library needs, made once."""
    home = folder / f"python{version}-{which}"
    python = str(home / "bin" / "python")
    if not (home / "done").exists():
        print(f"Installing {home}", file=sys.stderr)
        subprocess.run([f"python{version}", "-m", "venv", "--clear", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *_needs(which)], check=True)
        (home / "done").touch()
    return python


def _needs(which: str) -> list[str]:
    """The dependencies of the library, or their lowest versions."""
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    lowest = [re.sub(r">=([\d.]+)", _as_release, need) for need in needs]
    return lowest if which == "oldest" else needs


def _as_release(bound: re.Match) -> str:
    return f"=={bound[1]}" + (".0" if bound[1].count(".") == 1 else "")


# --- the table ---


def compare(paths: list[Path]) -> tuple[str, bool]:
    """How far each is from the first one, and whether all are near enough."""
    files = [json.loads(path.read_text()) for path in paths]
    best, others = files[0], files[1:]
    lines = [f"| relative to {best['environment']} | tolerance |" + " {} |" * len(others)]
    lines[0] = lines[0].format(*range(1, 1 + len(others)))
    lines.append("|---|---|" + "---|" * len(others))
    agreed = True
    for name, (tolerance, _) in QUANTITIES.items():
        gaps = [_gap(file["numbers"].get(name), best["numbers"][name]) for file in others]
        agreed &= all(gap is not None and gap <= tolerance for gap in gaps)
        shown = [_shown(gap, tolerance) for gap in gaps]
        lines.append(f"| {name} | {tolerance:.0e} | {' | '.join(shown)} |")
    named = [f"{i}. {file['environment']}" for i, file in enumerate(others, start=1)]
    return "\n".join([*lines, "", *named]), agreed


def write_csv(path: Path, paths: list[Path]) -> None:
    """The entries of the table, in its order."""
    best, *others = (json.loads(each.read_text()) for each in paths)
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["quantity", "tolerance", "where", "difference", "device"])
        for name, (tolerance, _) in QUANTITIES.items():
            for other in others:
                gap = _gap(other["numbers"].get(name), best["numbers"][name])
                where = _where(other["environment"], best["environment"])
                said = "" if gap is None else f"{gap:.0e}"
                out.writerow([name, f"{tolerance:.0e}", where, said, other["environment"]])


def _where(environment: str, best: str) -> str:
    """What is another than in the first environment: the versions, or the number of devices."""
    (_, devices, *versions), known = environment.split(", "), best.split(", ")[2:]
    count = devices.partition(" ")[0]
    return f"{count} device{'s' * (count != '1')}" if versions == known else ", ".join(versions)


def _shown(gap: float | None, tolerance: float) -> str:
    if gap is None:
        return "**missing**"
    return f"{gap:.0e}" if gap <= tolerance else f"**{gap:.0e}**"


def _gap(a: list[float] | None, b: list[float]) -> float | None:
    if a is None:
        return None
    if len(a) != len(b):
        return float("inf")
    gap = np.linalg.norm(np.subtract(a, b)) / np.linalg.norm(b)
    return float(gap) if np.isfinite(gap) else float("inf")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("files", nargs="*", type=Path, help="numbers written elsewhere")
    parser.add_argument("--write", type=Path, help="only compute, and write the numbers here")
    parser.add_argument("--part", nargs="+", choices=[*QUANTITIES], default=[*QUANTITIES])
    parser.add_argument("--processes", type=int, default=1, help="share --write out over so many")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for so long")
    parser.add_argument("--compare", action="store_true", help="compare files, compute nothing")
    parser.add_argument("--out", type=Path, help="a csv for the entries of the table")
    parser.add_argument("--matmul", default="highest", choices=["highest", "default"])
    parser.add_argument("--environments", type=Path, help="where to install other versions")
    args = parser.parse_args()
    if args.write and args.processes > 1:
        write_together(args.write, args.matmul, args.processes, args.seconds)
        return
    if args.write:
        write(args.write, args.matmul, args.part)
        return
    if args.compare:
        conclude(args.files, args.out)
    with tempfile.TemporaryDirectory() as folder:
        path, here = lambda i: Path(folder, f"{i}.json"), sys.executable
        paths = [run(here, path(0), JAX_ENABLE_X64="1"), run(here, path(1))]
        eight = "--xla_force_host_platform_device_count=8"
        paths.append(run(here, path(2), XLA_FLAGS=eight))
        for i, named in enumerate(ENVIRONMENTS if args.environments else [], start=3):
            paths.append(run(install(args.environments, *named), path(i)))
        conclude([*paths, *args.files], args.out)


def conclude(paths: list[Path], out: Path | None) -> NoReturn:
    """Prints the table, writes it if asked to, and ends with whether all agree."""
    table, agreed = compare(paths)
    print(table)
    if out is not None:
        write_csv(out, paths)
    sys.exit(not agreed)


if __name__ == "__main__":
    main()
