"""What does a training step cost: our plain calls, our defaults, our best, and the others?

    JPC_DATA_DIR=... python benchmarks/table.py [--hidden 3 5 10 30] [--widths 300 1024]
        [--sizes 64 1024] [--vgg 128] [--original FOLDER] [--pcx PYTHON] [--pcx-path FOLDER]
        [--rounds 5] [--at-once] [--out FILE.csv]

A tanh network 784-WIDTHxH-10 learns MNIST with Adam, and a VGG5 of so many channels CIFAR-10. Each
method runs in a process of its own, whose first call and largest memory are its own. Each first
trains its network for 100 steps, or for 20 s. Then they take turns. The tables have the median
time of a step, the wall time of the first call, the most memory of a GPU that was in use, and the
share of examples whose certificate holds. `loop`: a Python loop over steps; `fit`: steps of an
epoch of `jpc.fit`. (With FOLDER on the path `import original, jpc` is the original; see
`peer_pcx.py` for pcx, which runs right after the others.) With `--at-once` all methods compile and
train at the same time, before they take turns: for a machine with many cores.
"""

import argparse
import functools as ft
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

NAMES = {
    "backpropagation, loop": ("loop", "backprop"),
    "the original": ("loop", "original"),
    "make_pc_step, loop": ("loop", "default"),
    "Equilibrium(), loop": ("loop", "exact"),
    "backpropagation, fit": ("fit", "backprop"),
    "Equilibrium(), fit": ("fit", "exact"),
    "2 chords, fit": ("fit", "chords"),
}
PCX = "pcx 0.6.3, loop"
COUNT = 200  # Batches that there are.
WARM_UP, LONGEST = 100, 20.0  # Steps and seconds.
TURN = 0.5  # Seconds.


class Case(NamedTuple):
    """A network and a batch size. Without hidden layers it is a VGG5 of that width."""

    hidden: int
    width: int
    size: int

    def __str__(self) -> str:
        name = f"784-{self.width}x{self.hidden}-10" if self.hidden else f"VGG5, {self.width}"
        return f"{name}, batch {self.size}"


# --- one method, in a process of its own ---


def load(path: str, case: Case) -> tuple:
    """Inputs and targets, example by example, on the device."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    with np.load(path) as file:
        x, y = (file[name] for name in ("images", "labels"))
    return tuple(jax.device_put(a.reshape(-1, *a.shape[2:])) for a in (x, y))


def problem(case: Case) -> tuple:
    import equinox as eqx  # noqa: PLC0415
    import jax.random as jr  # noqa: PLC0415
    import optax  # noqa: PLC0415

    import jpc  # noqa: PLC0415

    key = jr.PRNGKey(0)
    model = (
        jpc.make_mlp(key, 784, case.width, case.hidden + 1, 10, "tanh")
        if case.hidden
        else jpc.make_cnn(key, (3, 32, 32), 10, size="vgg5", channels=case.width)
    )
    optim = optax.adam(1e-3)
    return model, optim, optim.init((eqx.filter(model, eqx.is_array), None))


def step_of(rule: str) -> Callable:
    """A step of the shape that `fit` takes."""
    import jpc  # noqa: PLC0415

    if rule in ("default", "original"):
        return jpc.make_pc_step
    methods = dict(
        exact=jpc.Equilibrium(),
        chords=jpc.Equilibrium(chords=2, max_steps=0),
        backprop=jpc.Backprop(),
    )
    return ft.partial(jpc.make_pc_step, inference=methods[rule])


def by_backprop(model: Any, optim: Any, state: Any, output: Any, input: Any) -> dict:
    """Backpropagation as people write it, without JPC."""
    import equinox as eqx  # noqa: PLC0415
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    def loss(model: Any) -> Any:
        predict = lambda z: ft.reduce(lambda z, layer: layer(z), model, z)
        return 0.5 * jnp.mean(jnp.sum((output - jax.vmap(predict)(input)) ** 2, axis=-1))

    updates, state = optim.update((eqx.filter_grad(loss)(model), None), state)
    return dict(model=eqx.apply_updates(model, updates[0]), opt_state=state)


Run = Callable[[int], tuple[float, float | None]]


def loop(rule: str, case: Case, data: tuple) -> Run:
    """A function of a number of steps: the seconds that these took, and the share of examples
    that have converged in the last one.
    """
    import equinox as eqx  # noqa: PLC0415
    import jax  # noqa: PLC0415

    model, optim, state = problem(case)
    x, y = (a.reshape(-1, case.size, *a.shape[1:]) for a in data)
    pairs = itertools.cycle([(x[i], y[i]) for i in range(len(x))])
    step = eqx.filter_jit(by_backprop) if rule == "backprop" else step_of(rule)
    now = dict(model=model, opt_state=state)

    def run(count: int) -> tuple[float, float | None]:
        nonlocal now
        begin = time.perf_counter()
        for (x, y), _ in zip(pairs, range(count), strict=False):
            given = (x,) if rule == "backprop" else ()
            named = {} if rule == "backprop" else dict(input=x)
            now = step(now["model"], optim, now["opt_state"], y, *given, **named)
        jax.block_until_ready(eqx.filter(now["model"], eqx.is_array))
        seconds, share = time.perf_counter() - begin, now.get("converged")
        return seconds, None if share is None else float(share)

    return run


def fit(rule: str, case: Case, data: tuple) -> Run:
    """The same of an epoch of as many steps, without what compiling takes after the first. The
    share is that of all steps.
    """
    import jax.random as jr  # noqa: PLC0415

    import jpc  # noqa: PLC0415

    (model, optim, opt_state), (x, y) = problem(case), data
    now, step = dict(model=model, optim=optim, opt_state=opt_state), step_of(rule)
    named: Any = dict(epochs=1, batch_size=case.size, progress=False)
    made = False

    def run(count: int) -> tuple[float, float | None]:
        nonlocal now, made
        begin, some = time.perf_counter(), count * case.size
        fitted = jpc.fit(step, now, (x[:some], y[:some]), key=jr.key(count), **named)
        now, first, made = fitted.state, not made, True
        told = fitted.history[0]
        seconds = time.perf_counter() - begin if first else told["seconds"]
        return seconds, told.get("converged")

    return run


def memory() -> float | None:
    """The most of the device's that was in use so far, in MB. A CPU does not tell."""
    import jax  # noqa: PLC0415

    stats = jax.devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] / 1e6 if stats else None


def serve(name: str, path: str, *numbers: int) -> None:
    """Takes numbers of steps from lines. Answers with seconds, the share of examples that have
    converged, and the memory so far.
    """
    import jax  # noqa: PLC0415

    (how, rule), case = NAMES[name], Case(*numbers)
    data = load(path, case)
    run = dict(loop=loop, fit=fit)[how](rule, case, data)
    print(json.dumps([jax.devices()[0].device_kind, len(data[0]) // case.size]), flush=True)
    for line in sys.stdin:
        print(json.dumps([*run(int(line)), memory()]), flush=True)


# --- all of them ---


class Server:
    def __init__(self, name: str, case: Case, data: str, original: str):
        script = Path(__file__).resolve()
        begin = f"import sys; sys.path.insert(0, {str(script.parent)!r}); "
        begin += "import original; " if original else ""
        code = f"{begin}import table; table.serve({name!r}, {data!r}, *{tuple(case)!r})"
        env = dict(os.environ, XLA_PYTHON_CLIENT_PREALLOCATE="false")
        env["PYTHONPATH"] = original or f"{script.parents[1]}:{env.get('PYTHONPATH', '')}"
        pipe: Any = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
        self.process: Any = subprocess.Popen([sys.executable, "-c", code], env=env, **pipe)
        self.device, self.limit = self._read()

    def _read(self) -> list:
        for line in self.process.stdout:
            if line.startswith("["):
                return json.loads(line)
        raise RuntimeError("The process of a method has ended.")

    def run(self, count: int) -> tuple[float, float | None, float | None]:
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return tuple(self._read())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def make_data(case: Case, path: Path) -> None:
    import numpy as np  # noqa: PLC0415
    from common import batches  # noqa: PLC0415

    import jpc.data  # noqa: PLC0415

    count = COUNT if case.hidden and case.size < 1000 else COUNT // 10
    if case.hidden:
        images, labels = batches(case.size, count)
    else:
        x, y = jpc.data.load("cifar10", normalise=True).train
        some = slice(count * case.size)
        images = np.asarray(x[some], np.float32).reshape(count, case.size, 3, 32, 32)
        labels = np.eye(10, dtype=np.float32)[y[some]].reshape(count, case.size, 10)
    np.savez(path, images=images, labels=labels)


def prepare(server: Server) -> tuple[float, int]:
    """The seconds of the first call, and how many steps a turn takes, after some training."""
    first, *_ = server.run(2)
    trial = server.run(2)[0] / 2
    count = max(2, min(server.limit, int(TURN / trial)))
    begin, taken = time.perf_counter(), 0
    while taken < WARM_UP and time.perf_counter() - begin < LONGEST:
        server.run(count)  # `fit` compiles a program of this length.
        taken += count
    return first, count


def measure(
    names: list[str], case: Case, data: str, original: str, rounds: int, at_once: bool
) -> dict[str, dict]:
    path = lambda name: original if name == "the original" else ""
    start = lambda name: Server(name, case, data, path(name))
    with ThreadPoolExecutor(len(names) if at_once else 1) as pool:
        servers = dict(zip(names, pool.map(start, names), strict=True))
        ready = dict(zip(names, pool.map(prepare, servers.values()), strict=True))
    found: dict[str, dict] = {
        name: dict(first=ready[name][0], times=[], device=server.device)
        for name, server in servers.items()
    }
    for _ in range(rounds):
        for name, server in servers.items():
            count = ready[name][1]
            seconds, share, memory = server.run(count)
            found[name]["times"].append(1e3 * seconds / count)
            found[name] |= dict(converged=share, memory=memory)
    for name, server in servers.items():
        server.close()
        found[name]["ms"] = statistics.median(found[name].pop("times"))
    return found


def peer(args: argparse.Namespace, case: Case, data: str) -> dict:
    """What `peer_pcx.py` measures, with the same data."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= dict(XLA_PYTHON_CLIENT_PREALLOCATE="false", PYTHONPATH=args.pcx_path or "")
    script = Path(__file__).with_name("peer_pcx.py")
    command = [args.pcx, str(script), str(case.hidden), data, str(case.width)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    ms = 1e3 * statistics.median(told["seconds"]) / told["batches"]
    told |= dict(ms=ms, first=told["compiling"], converged=None)
    return {name: told[name] for name in ("ms", "first", "memory", "converged", "device")}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hidden", type=int, nargs="*", default=[3, 5, 10, 30])
    parser.add_argument("--widths", type=int, nargs="+", default=[300, 1024])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--vgg", type=int, nargs="*", default=[128], help="its channels")
    parser.add_argument("--original", type=Path, help="its folder")
    parser.add_argument("--pcx", help="a Python that has it")
    parser.add_argument("--pcx-path", help="a folder that has it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", action="store_true", help="compile all methods at once")
    parser.add_argument("--out", type=Path, help="a csv to add the numbers to")
    args = parser.parse_args()
    from common import write_rows  # noqa: PLC0415

    chains = map(Case._make, itertools.product(args.hidden, args.widths, args.sizes))
    cases = [*chains, *(Case(0, width, size) for width in args.vgg for size in args.sizes)]
    columns = ["case", "method", "ms", "ratio", "first", "memory", "converged", "device"]
    for case in cases:
        theirs = args.original is not None and case.hidden > 0
        names = [name for name in NAMES if name != "the original" or theirs]
        original = str(args.original.resolve()) if theirs else ""
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data.npz"
            make_data(case, data)
            found = measure(names, case, str(data), original, args.rounds, args.at_once)
            if args.pcx and case.hidden:
                found[PCX] = peer(args, case, str(data))
        base = found["backpropagation, fit"]["ms"]
        device = found["backpropagation, fit"]["device"]
        head = "{:24} {:>8} {:>6} {:>8} {:>6} {:>9}"
        told = head.format("", "ms", "ratio", "first, s", "MB", "converged")
        print(f"\n{case} ({device})\n{told}")
        for name, row in found.items():
            numbers = row["ms"], row["ms"] / base, row["first"]
            rest = row["memory"], row["converged"]
            write_rows(args.out, columns, [(str(case), name, *numbers, *rest, device)])
            forms = ("{:.3f}", "{:.2f}", "{:.1f}", "{:.0f}", "{:.0%}")
            pairs = zip(forms, (*numbers, *rest), strict=True)
            told = ("-" if x is None else form.format(x) for form, x in pairs)
            print(head.format(name, *told), flush=True)


if __name__ == "__main__":
    main()
