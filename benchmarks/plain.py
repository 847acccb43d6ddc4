"""What do the paper's calls cost in a plain loop, ours and those of the paper's implementation?

    python benchmarks/plain.py --original FOLDER [--rounds 7] [--only WORD] [--out FILE.csv]
    python benchmarks/plain.py --ours-only

With FOLDER on the path `import original, jpc` is the original. Each of the two runs in a process
of its own, and they take turns: a turn is a few calls as a training loop makes them, each with the
parameters of the last, and ends when the device has finished. The table has the median over turns
of the time of a call in ms. Networks of 8 units show what a call costs besides its mathematics.
On a CPU the paper's Euler takes the first 20 of its steps.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TIMES = ("case", "original", "ours", "first_original", "first_ours", "device")
# H: T of the paper's settings on MNIST, Euler's dt.
PAPER = {3: (20, 0.5), 5: (50, 0.5), 10: (200, 0.05)}


def cases() -> Iterator[tuple[str, Callable[[int], Any]]]:
    """Names, and functions that make as many calls as they are told and return the last answer."""
    import diffrax  # noqa: PLC0415
    import jax  # noqa: PLC0415

    few = jax.default_backend() == "cpu"
    for hidden in (3, 10):
        tiny = (8, 8, 4, 4)
        yield f"8 units, H = {hidden}: make_pc_step, T = 1", steps(hidden, *tiny, max_t1=1)
        yield f"8 units, H = {hidden}: solve_inference, T = 1", infer(hidden, *tiny, max_t1=1)
        yield f"8 units, H = {hidden}: update_params", learn(hidden, *tiny)
    for hidden, (t1, dt) in PAPER.items():
        size, name = (784, 300, 10, 64), f"784-300x{hidden}-10"
        yield f"{name}: make_pc_step, defaults", steps(hidden, *size)
        named: Any = dict(max_t1=t1, dt=0.05)
        yield f"{name}: make_pc_step, T = {t1}, dt = 0.05", steps(hidden, *size, **named)
        end = min(t1, 20 * dt) if few else t1
        euler: Any = dict(ode_solver=diffrax.Euler(), dt=dt, max_t1=end)
        euler |= dict(stepsize_controller=diffrax.ConstantStepSize())
        yield f"{name}: make_pc_step, Euler, T = {end:g}, dt = {dt}", steps(hidden, *size, **euler)
        yield f"{name}: solve_inference, defaults", infer(hidden, *size)
        yield f"{name}: update_params", learn(hidden, *size)


def problem(hidden: int, inputs: int, width: int, outputs: int, batch: int) -> Any:
    import equinox as eqx  # noqa: PLC0415
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415
    import jax.random as jr  # noqa: PLC0415
    import optax  # noqa: PLC0415

    import jpc  # noqa: PLC0415

    key = jr.PRNGKey(0)
    model = jpc.make_mlp(key, inputs, width, hidden + 1, outputs, "tanh")
    optim = optax.adam(1e-3)
    state = optim.init((eqx.filter(model, eqx.is_array), None))
    x = jr.normal(key, (batch, inputs))
    return model, optim, state, x, jax.nn.one_hot(jnp.arange(batch) % outputs, outputs)


def steps(*size: int, **options: Any) -> Callable[[int], Any]:
    def make() -> Callable[[int], Any]:
        import jpc  # noqa: PLC0415

        first, optim, begun, x, y = problem(*size)

        def run(count: int) -> Any:
            model, state = first, begun
            for _ in range(count):
                new = jpc.make_pc_step(model, optim, state, y, input=x, **options)
                model, state = new["model"], new["opt_state"]
            return model

        return run

    return once(make)


def infer(*size: int, **options: Any) -> Callable[[int], Any]:
    def make() -> Callable[[int], Any]:
        import jpc  # noqa: PLC0415

        model, _, _, x, y = problem(*size)
        start = jpc.init_activities_with_ffwd(model=model, input=x)

        def run(count: int) -> Any:
            last = None
            for _ in range(count):
                last = jpc.solve_inference((model, None), start, y, input=x, **options)
            return last

        return run

    return once(make)


def learn(*size: int) -> Callable[[int], Any]:
    def make() -> Callable[[int], Any]:
        import jpc  # noqa: PLC0415

        first, optim, begun, x, y = problem(*size)
        start = jpc.init_activities_with_ffwd(model=first, input=x)
        names: Any = dict(output=y, input=x)

        def run(count: int) -> Any:
            model, state = first, begun
            for _ in range(count):
                new = jpc.update_pc_params((model, None), start, optim, state, **names)
                model, state = new["model"], new["opt_state"]
            return model

        return run

    return once(make)


def once(make: Callable[[], Callable]) -> Callable[[int], Any]:
    """The function that is made when it is first called."""
    made: list[Callable] = []

    def run(count: int) -> Any:
        if not made:
            made.append(make())
        return made[0](count)

    return run


def serve() -> None:
    """Takes a case and a number of calls from each line, and answers with seconds."""
    import equinox as eqx  # noqa: PLC0415
    import jax  # noqa: PLC0415

    known = dict(cases())
    print(json.dumps([jax.devices()[0].device_kind, jax.__version__, list(known)]), flush=True)
    for line in sys.stdin:
        name, count = json.loads(line)
        wall, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(eqx.filter(known[name](count), eqx.is_array))
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)


class Server:
    """One of the two, in its own process."""

    def __init__(self, path: str):
        script = Path(__file__).resolve()
        begin = f"import sys; sys.path.insert(0, {str(script.parent)!r}); "
        begin += "import original; " if path else ""
        pipe: Any = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ours = f"{script.parents[1]}:{os.environ.get('PYTHONPATH', '')}"
        env = dict(os.environ, PYTHONPATH=path or ours)
        code = [sys.executable, "-c", f"{begin}import plain; plain.serve()"]
        self.process: Any = subprocess.Popen(code, env=env, cwd="/", **pipe)
        self.device, self.version, self.cases = json.loads(self.process.stdout.readline())

    def run(self, name: str, count: int) -> list[float]:
        self.process.stdin.write(json.dumps([name, count]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measure(servers: dict[str, Server], name: str, rounds: int, budget: float) -> dict[str, Any]:
    """Of each: the first call, then medians of a call in turns of about `budget` seconds."""
    first = {who: server.run(name, 1)[1] for who, server in servers.items()}
    trial = max(server.run(name, 2)[0] / 2 for server in servers.values())
    count = max(1, min(100, int(budget / trial)))
    turns: dict[str, list] = {who: [] for who in servers}
    for _ in range(rounds):
        for who, server in servers.items():
            turns[who].append(server.run(name, count))
    middle = lambda who, i: 1e3 * statistics.median(turn[i] / count for turn in turns[who])
    return {who: (first[who], middle(who, 0), middle(who, 1)) for who in servers}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--original", type=Path, help="its folder")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument("--out", type=Path, help="a csv to add the times of both to")
    args = parser.parse_args()
    from common import write_rows  # noqa: PLC0415

    if args.original is None and not args.ours_only:
        parser.error("give --original FOLDER, or --ours-only")
    servers = {} if args.ours_only else {"original": Server(str(args.original.resolve()))}
    servers["ours"] = Server("")
    ours = servers["ours"]
    print(f"{ours.device}, JAX {ours.version}; ms a call (processor time), first call in s of it")
    print(f"| | {' | '.join(servers)} | ours / original | first calls |")
    print("|---|" + "---|" * (len(servers) + 2))
    for name in (name for name in ours.cases if args.only in name):
        found = measure(servers, name, args.rounds, 0.1)
        cells = [f"{wall:.2f} ({cpu:.2f})" for _, wall, cpu in found.values()]
        ratio = [found["ours"][i] / found["original"][i] for i in (1, 2)] if len(found) > 1 else []
        cells.append(" ".join(("{:.2f}", "({:.2f})")[i].format(r) for i, r in enumerate(ratio)))
        cells.append(" / ".join(f"{first:.1f}" for first, _, _ in found.values()))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        if len(found) > 1:
            (one, theirs, _), (two, mine, _) = found.values()
            where = f"{ours.device}, JAX {ours.version}"
            write_rows(args.out, TIMES, [(name, theirs, mine, one, two, where)])
    for server in servers.values():
        server.close()


if __name__ == "__main__":
    main()
