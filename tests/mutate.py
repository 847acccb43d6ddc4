"""Would our tests notice? Changes the library in one place at a time, and runs its tests.

    python tests/mutate.py [--count 120] [--seed 0] [--only jpc/_energy] [--minutes 60]
        [--processes 1] [--results FILE] [--show]

Mutants are drawn at random from the core: energies, inference, learning, theory, clamps, layers,
metrics, as many of each part as its share. Each is one change of an operator, a comparison, a
number or a function; of messages, annotations and defaults none is made.

Before the first mutant the tests run once as they are, to learn which of them reach which line,
and how long each takes (kept in `.mutate.json`: tests that are new there run alone; delete it
after large changes). A mutant is a function whose code is exchanged, in a process that is forked
from one in which the library has been imported. It meets the tests that reach its line, the
quickest of each file first; if these pass, others of the files that they are from, as far as that
takes a minute. None of them is marked slow. It is caught if a test fails, or takes far longer than
it did. Tests that take next to nothing are never left out.
Survivors are listed with their line; those that are equivalent are in `EQUIVALENT`, with the
reason.
Verdicts are added to `--results` as they come: another run with this file goes on, and meets only
those again that lived. Each of several processes has its own copy of the library.
`--show` lists the mutants and runs nothing.
"""

import argparse
import ast
import atexit
import builtins
import functools as ft
import gc
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# What is changed, by part: a sample has as many mutants of each as its share of all of them.
PARTS: dict[str, list[str]] = {
    "energies": ["jpc/_energy"],
    "inference": ["jpc/_inference", "jpc/_solve.py"],
    "theory": ["jpc/_theory", "jpc/_regime.py", "jpc/_gap.py"],
    "learning": ["jpc/_learn.py", "jpc/_metrics.py"],
    "states": ["jpc/_clamp.py", "jpc/_layer.py"],
}
# The tests that are to notice.
TESTS = [
    "solve", "layer", "theory", "learn", "regime", "energy", "network", "graph", "masks",
    "learning_rules", "methods", "flow", "equilibrium", "kinks", "implicit", "mcpc",
    "core_says_no", "pieces", "carried", "terms", "single_units",
]  # fmt: skip
# `file: the line: what is changed -> into what`, and why nothing can notice. A setting is a number
# of which another one would do as well: how often to try, or how small is nothing.
EQUIVALENT: dict[str, str] = {
    "jpc/_inference/sketch.py: least = 100 * float(jnp.finfo(yhat.dtype).eps) * at_least(trace): "
    "100 * float(jnp.finfo(yhat.dtype).eps) * at_least(trace) -> "
    "(100 * float(jnp.finfo(yhat.dtype).eps) / at_least(trace))": (
        "A floor below which there is only rounding: any small one will do."
    ),
    "jpc/_inference/sketch.py: least = 100 * float(jnp.finfo(yhat.dtype).eps) * at_least(trace): "
    "100 -> (101)": "The same floor.",
    "jpc/_regime.py: x = jax.lax.fori_loop(0, _POWERS, power, probes[0] / jnp.sqrt(y.size)): "
    "probes[0] / jnp.sqrt(y.size) -> (probes[0] * jnp.sqrt(y.size))": (
        "The first power makes it a unit vector, however long it is."
    ),
    'jpc/_inference/nudged.py: limit = self.beta is None and self.kind == "target": '
    'self.beta is None and self.kind == "target" -> '
    "(self.beta is None or self.kind == 'target')": "It makes a matrix that nothing then uses.",
    "jpc/_inference/backprop.py: nothing = jax.tree.map(jnp.zeros_like, _errors(unfolded, free, "
    "given)): jnp.zeros_like -> jnp.ones_like": "Every layer has its moment, which replaces it.",
    "jpc/_inference/relax.py: okay = new.energy <= point.energy + 1e-4 * length * slope + "
    "point.blur: 1e-4 -> (0.0002)": "How much less is enough: a setting.",
    "jpc/_inference/relax.py: memory, progress = _Memory(empty, empty, empty[:, 0]), "
    "Progress(never, never, jnp.asarray(0)): 0 -> (1)": ("All columns are zeros."),
    "jpc/_inference/relax.py: memory, progress = _Memory(empty, empty, empty[:, 0]), "
    "Progress(never, never, jnp.asarray(0)): 0 -> (1) (2)": (
        "The first gap is below that of never, so that counting begins."
    ),
    "jpc/_inference/equilibrium.py: size = sum(z[0].size for name in unfolded.seen for z in "
    "jax.tree.leaves(given[name])[:1]): 0 -> (1)": "All examples have the same size.",
    "jpc/_theory/linear.py: _, unravel = ravel_pytree(jax.tree.map(lambda z: z[0], nodes)): "
    "0 -> (1)": "Only the shapes of an example are looked at.",
    "jpc/_inference/relax.py: return _Point(x, energy, gradient, -slope, self.J[:, :0], "
    "self.W * gradient, blur): 0 -> (1)": "There is no row, so that either is empty.",
    "jpc/_inference/base.py: slack = 0.1 * (1 + jnp.abs(before)): 0.1 -> (0.2)": (
        "How far above its start is no divergence yet: a setting."
    ),
    "jpc/_inference/equilibrium.py: kinks = find_kinks(unfolded, *jax.tree.map(lambda x: x[0], "
    "(start, given))): 0 -> (1)": "Only the shapes of an example are looked at.",
    "jpc/_inference/relax.py: okay = curvature > 1e-10 * jnp.linalg.norm(s) * "
    "jnp.linalg.norm(y): 1e-10 -> (2e-10)": "How flat is too flat: a setting, near rounding.",
    "jpc/_inference/relax.py: return 4 * eps * terms + 4 * product_eps(yhat.dtype) * size * "
    "slope: 4 -> (5)": "How many units in the last place are rounding: a setting.",
    "jpc/_inference/relax.py: return 4 * eps * terms + 4 * product_eps(yhat.dtype) * size * "
    "slope: 4 -> (5) (2)": "How many units in the last place are rounding: a setting.",
    "jpc/_theory/linear.py: eye = lambda n: jnp.eye(n, dtype=matrices[0].dtype): 0 -> (1)": (
        "All matrices are of one type."
    ),
    "jpc/_regime.py: probes = jr.rademacher(jr.key(0), (_PROBES, y.size), y.dtype): 0 -> (1)": (
        "Any random probes will do."
    ),
    "jpc/_inference/kinks.py: progress = Progress(never, never, jnp.asarray(0)): 0 -> (1)": (
        "The first gap is below that of never, which begins to count anew."
    ),
    "jpc/_inference/minimise.py: total = lambda z: jnp.sum(examples(energy, params, z, clamps)): "
    "jnp.sum -> jnp.mean": "A mean has the minimum of a sum.",
    "jpc/_regime.py: return new / jnp.maximum(jnp.linalg.norm(new), 1e-30): 1e-30 -> (2e-30)": (
        "Any tiny number keeps nothing from being divided by nothing."
    ),
    "jpc/_regime.py: x = jax.lax.fori_loop(0, _POWERS, power, probes[0] / jnp.sqrt(y.size)): "
    "0 -> (1)": ("Which probe, and whether there is a power less: a setting."),
    "jpc/_regime.py: x = jax.lax.fori_loop(0, _POWERS, power, probes[0] / jnp.sqrt(y.size)): "
    "0 -> (1) (2)": ("Which probe, and whether there is a power less: a setting."),
    "jpc/_regime.py: *(jnp.mean(examples(energy, params, z, clamps)) for z in (first, ended, "
    "last)): jnp.mean -> jnp.sum": ("A share of sums is that of means."),
    "jpc/_inference/backprop.py: gap = _distance(step(0, delta), delta) / "
    "jnp.abs(jnp.asarray(self.dt)): 0 -> (1)": ("A step does not look at its number."),
    "jpc/_clamp.py: return Masked(jnp.where(mask, given, jnp.zeros_like(free)), "
    "jnp.asarray(mask)): jnp.zeros_like -> jnp.ones_like": (
        "What a mask hides does not matter, unless it is NaN."
    ),
    "jpc/_inference/base.py: nodes = eqx.tree_pformat(self.nodes, width=1000): 1000 -> (1001)": (
        "So wide that all is in one line."
    ),
    "jpc/_inference/mix.py: nothing = jax.tree.map(jnp.zeros_like, here): "
    "jnp.zeros_like -> jnp.ones_like": ("Of the step before the first none is taken."),
    "jpc/_inference/mix.py: ridge = 1 + jnp.finfo(a.dtype).eps ** 0.5: "
    "jnp.finfo(a.dtype).eps ** 0.5 -> (jnp.finfo(a.dtype).eps * 0.5)": (
        "A ridge against rounding: any small one will do."
    ),
    "jpc/_inference/mix.py: ridge = 1 + jnp.finfo(a.dtype).eps ** 0.5: 0.5 -> (1.0)": (
        "The same ridge."
    ),
    "jpc/_inference/mix.py: return energy, _FLAT * jnp.abs(energy) + 8 * eps * norm(yhat) * "
    "(1 + norm(yhat)): 8 -> (9)": ("How many units in the last place are rounding: a setting."),
    "jpc/_inference/relax.py: over = done | (gap <= rtol) | (steps >= max_steps) | "
    "(progress.stalled > 2): 2 -> (3)": ("How often to begin anew for nothing: a setting."),
    "jpc/_inference/relax.py: inner = Progress(point.energy, gap, jnp.asarray(0)): 0 -> (1)": (
        "How patient to be: a setting."
    ),
    "jpc/_inference/relax.py: & (state[4] > 0.5 * rtol): 0.5 -> (1.0)": (
        "How far to go before the matrix is made anew: a setting."
    ),
    "jpc/_inference/relax.py: state = (x, memory, never, jnp.zeros_like(yhat), never, "
    "jnp.asarray(0), progress, done): jnp.zeros_like -> jnp.ones_like": (
        "Of an example that is done nobody looks at it; others replace it."
    ),
    "jpc/_inference/kinks.py: patience = jnp.where(jnp.any(held), _PATIENCE, 4)  # Kinks of "
    "another kind cannot be held.: 4 -> (5)": ("How patient to be: a setting."),
    "jpc/_inference/kinks.py: patience = jnp.where(jnp.any(held), _PATIENCE, 4)  # Kinks of "
    "another kind cannot be held.: jnp.any -> jnp.all": ("How patient to be: a setting."),
    "jpc/_inference/kinks.py: solver = lx.CG(max_steps=min(2 * z.size, 200), **options): 2 "
    "-> (3)": ("How many steps are enough: a setting."),
    "jpc/_inference/kinks.py: solver = lx.CG(max_steps=min(2 * z.size, 200), **options): 200 "
    "-> (201)": ("How many steps are enough: a setting."),
    "jpc/_inference/kinks.py: return length / 4, new, held, energy(new) <= most: 4 -> (5)": (
        "How much shorter the next try is: a setting."
    ),
    "jpc/_inference/kinks.py: return ~okay & (length > 1e-6): 1e-6 -> (2e-06)": (
        "When to give up: a setting."
    ),
    "jpc/_inference/chords.py: lengths = jnp.asarray([1.0, 0.5, 0.25, 0.0625], yhat.dtype): "
    "0.5 -> (1.0)": ("Which lengths are tried: a setting."),
    "jpc/_inference/chords.py: lengths = jnp.asarray([1.0, 0.5, 0.25, 0.0625], yhat.dtype): "
    "0.25 -> (0.5)": ("Which lengths are tried: a setting."),
    "jpc/_inference/chords.py: lengths = jnp.asarray([1.0, 0.5, 0.25, 0.0625], yhat.dtype): "
    "0.0625 -> (0.125)": ("Which lengths are tried: a setting."),
    "jpc/_inference/flow.py: rounding = 10 * jnp.finfo(start.dtype).eps * size + "
    "jnp.finfo(start.dtype).tiny: 10 -> (11)": (
        "How many units in the last place are rounding: a setting."
    ),
    "jpc/_inference/flow.py: return jax.lax.fori_loop(0, 8, iterate, (direction, "
    "optx.rms_norm(direction)))[1]: 0 -> (1)": ("How many powers are a few: a setting."),
    "jpc/_inference/flow.py: return jax.lax.fori_loop(0, 8, iterate, (direction, "
    "optx.rms_norm(direction)))[1]: 8 -> (9)": ("How many powers are a few: a setting."),
    "jpc/_inference/langevin.py: tree = dfx.VirtualBrownianTree(t0, t1, dt / 2, shape, key, "
    "area): 2 -> (3)": ("How fine a tree is: a setting."),
    "jpc/_inference/implicit.py: solver = _Scaled(lx.CG(rtol=tolerance, atol=tolerance, "
    "max_steps=1000)): 1000 -> (1001)": ("How many steps are enough: a setting."),
    "jpc/_inference/nudged.py: same = unfolded.quadratic(given) and not each: "
    "unfolded.quadratic(given) and not each -> (unfolded.quadratic(given) or not each)": (
        "An inverse or a solve: the same numbers."
    ),
    "jpc/_inference/nudged.py: same = unfolded.quadratic(given) and not each: not each -> "
    "(each)": ("An inverse or a solve: the same numbers."),
    "jpc/_inference/nudged.py: return sum(y[0].size for y in "
    "jax.tree.leaves(_predicted(forward))): 0 -> (1)": ("All examples have the same size."),
}
_MAP = ROOT / ".mutate.json"
_SLOW, _EXTRA = 4.0, 60.0  # A mutant has so many times the usual seconds, and so many more.
_BUSY = 5.0  # So many seconds of the clock for one of a processor, at most.
_CONTROL = 50  # After so many mutants the tests must pass on what is not changed.
_PIECE = 4  # So many tests of a file are mapped at a time, if there are several processes.
_ENOUGH = 20.0  # Seconds of tests that a mutant meets; half as many of their cases, and of others.
_NOTHING = 0.1  # Seconds that are next to nothing: a few dozen such tests are one other.
_SHORT = "tests/test_core_says_no.py"  # Its many cases share a function, and no programs.
_ENV = {  # One thread each. Most programs of a mutant are those that other mutants have compiled.
    "OPENBLAS_NUM_THREADS": "1",
    "JAX_COMPILATION_CACHE_DIR": f"{tempfile.gettempdir()}/jpc-mutants",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
_SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_FUNCTIONS = {
    "sum": "mean", "mean": "sum", "maximum": "minimum", "minimum": "maximum", "max": "min",
    "min": "max", "any": "all", "all": "any", "argmin": "argmax", "zeros_like": "ones_like",
    "multiply": "divide", "divide": "multiply",
}  # fmt: skip


@ft.cache
def read(path: str) -> str:
    """As it is when a run begins."""
    return (ROOT / path).read_text()


class Mutant(NamedTuple):
    path: str
    line: int
    begin: int
    end: int
    new: str

    def source(self) -> str:
        text = read(self.path)
        return text[: self.begin] + self.new + text[self.end :]

    def undone(self) -> "Mutant":
        text = read(self.path)
        return self._replace(new=text[self.begin : self.end])

    def lines(self) -> set[int]:
        changed = read(self.path)[self.begin : self.end]
        return {*range(self.line, self.line + 1 + changed.count("\n"))}

    def key(self) -> str:
        """What stays the same when lines move; with a number, if such a change of such a line is
        not the first one.
        """
        number = _alike(self.path)[self._words()].index(self.begin) + 1
        return f"{self.path}: {self._words()}" + (f" ({number})" if number > 1 else "")

    def _words(self) -> str:
        return f"{_lines(self.path)[self.line - 1]}:{self.shown().split(':', 2)[2]}"

    def shown(self) -> str:
        text = read(self.path)
        old = " ".join(text[self.begin : self.end].split())
        return f"{self.path}:{self.line}: {old} -> {self.new}"


@ft.cache
def _alike(path: str) -> dict[str, list[int]]:
    """Where the changes of a file are that have the same words."""
    places = defaultdict(list)
    for mutant in _mutants_of(path):
        places[mutant._words()].append(mutant.begin)
    return places


class Finder(ast.NodeVisitor):
    """The places of a file that can be changed."""

    def __init__(self, path: str, text: str):
        self.path, self.found = path, []
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))
        self._bytes = text.encode()

    def visit(self, node: ast.AST) -> None:
        skipped = ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom
        if isinstance(node, skipped):
            return
        if isinstance(node, ast.AnnAssign):  # Fields and their defaults.
            return
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            for part in node.body if isinstance(node, ast.FunctionDef) else [node.body]:
                self.visit(part)
            return
        for new in _changes(node):
            self._add(node, new)
        self.generic_visit(node)

    def _add(self, node: ast.AST, new: ast.AST) -> None:
        begin = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        chars = lambda n: len(self._bytes[:n].decode())
        text = f"({ast.unparse(new)})" if not isinstance(new, ast.Attribute) else ast.unparse(new)
        self.found.append(Mutant(self.path, node.lineno, chars(begin), chars(end), text))


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.BinOp() if type(node.op) in _SWAPS:
            yield ast.BinOp(node.left, _SWAPS[type(node.op)](), node.right)
        case ast.BoolOp():
            yield ast.BoolOp(_SWAPS[type(node.op)](), node.values)
        case ast.Compare() if len(node.ops) == 1 and type(node.ops[0]) in _SWAPS:
            yield ast.Compare(node.left, [_SWAPS[type(node.ops[0])]()], node.comparators)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.Constant() if isinstance(node.value, int | float) and node.value not in (True,):
            whole = isinstance(node.value, int) or node.value == 0
            yield ast.Constant(node.value + 1 if whole else 2 * node.value)
        case ast.Attribute() if node.attr in _FUNCTIONS and isinstance(node.value, ast.Name):
            yield ast.Attribute(node.value, _FUNCTIONS[node.attr], ast.Load())


def find_mutants(only: str) -> dict[str, list[Mutant]]:
    """By part."""
    return {
        part: [m for path in _files(part) if path.startswith(only) for m in _mutants_of(path)]
        for part in PARTS
    }


def _files(part: str) -> list[str]:
    targets = [ROOT / place for place in PARTS[part]]
    files = [sorted(t.glob("*.py")) if t.is_dir() else [t] for t in targets]
    return [str(file.relative_to(ROOT)) for group in files for file in group]


@ft.cache
def _mutants_of(path: str) -> list[Mutant]:
    finder = Finder(path, text := read(path))
    for part in ast.parse(text).body:
        if not isinstance(part, ast.Assign):  # Settings, that are not wrong but worse.
            finder.visit(part)
    return list(dict.fromkeys(finder.found))


def sample(every: dict[str, list[Mutant]], count: int, seed: int) -> list[Mutant]:
    """Of each part its share, in an order that is mixed, so that a run may be stopped."""
    rng, total = random.Random(seed), sum(map(len, every.values()))
    shares = [rng.sample(m, min(len(m), -(-count * len(m) // total))) for m in every.values() if m]
    chosen = [mutant for share in shares for mutant in share]
    rng.shuffle(chosen)
    return chosen


# --- processes ---


def fork(work: Any, seconds: float = float("inf")) -> str | None:
    """What a function returns in a process of its own; nothing if it takes too long: so many
    seconds of a processor, which on a busy machine are more of a clock.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks: it has started nothing here.
        answer, log = Path(folder, "answer"), Path(folder, "log")
        if (pid := os.fork()) == 0:
            _answer(work, answer, log)
        try:
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                if max(_used(pid), (time.monotonic() - begin) / _BUSY) > seconds:
                    raise TimeoutError
                time.sleep(0.05)
        except BaseException as error:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if isinstance(error, TimeoutError):
                return None
            raise
        return answer.read_text() if answer.exists() else f"a crash: {log.read_text()[-500:]}"


def _used(pid: int) -> float:
    """The seconds of a processor that a process has used, with its children that have ended."""
    try:
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # It has just ended, or there is no such folder: the clock will do.
        return 0.0
    return sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK")


def _answer(work: Any, answer: Path, log: Path) -> None:
    try:
        os.setsid()
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        answer.write_text(work())
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def import_others() -> None:
    """What takes long and is the same for all mutants."""
    os.environ.update(_ENV)
    import beartype  # noqa: F401, PLC0415
    import diffrax  # noqa: F401, PLC0415
    import optimistix  # noqa: F401, PLC0415
    import pytest  # noqa: F401, PLC0415


def import_library(folder: str) -> None:
    """From a copy, with what `tests/conftest.py` does to it."""
    copy_to(folder)
    sys.path[:0] = [folder, f"{folder}/tests"]
    import conftest  # noqa: F401, PLC0415 # pyright: ignore[reportMissingImports]


def copy_to(folder: str) -> None:
    for name in ("jpc", "tests"):
        shutil.copytree(ROOT / name, f"{folder}/{name}")
    for name in ("docs", "examples", "benchmarks", "pyproject.toml", "README.md"):
        os.symlink(ROOT / name, f"{folder}/{name}")


def run_tests(folder: str, tests: list[str], *plugins: Any) -> bool:
    """Whether they pass. So do single tests that are not there, of an old map, but not those of a
    file that cannot be imported.
    """
    import pytest  # noqa: PLC0415

    os.chdir(folder)
    os.environ["PYTHONPATH"] = folder
    sys.path[:] = [folder, f"{folder}/tests", *(p for p in sys.path if Path(p) != ROOT / "tests")]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # Of a second run.
    code = pytest.main([*options, *tests], plugins=list(plugins))
    if code == pytest.ExitCode.USAGE_ERROR and "::" in tests[0]:
        code = pytest.main([*options, "--collect-only", tests[0].partition("::")[0]])
    return code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


# --- which tests reach which lines ---


class Reached:
    """A plugin of pytest: the lines of the core that each test reaches, and its seconds, of a
    processor: those of a clock say little on a busy machine.
    """

    def __init__(self):
        self.lines: dict[str, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = defaultdict(float)
        builtins._reached = self  # pyright: ignore[reportAttributeAccessIssue]
        self._now: set[str] = set()
        self._begun = 0.0

    def add(self, place: str) -> None:
        self._now.add(place)

    def pytest_runtest_protocol(self, item: Any) -> None:
        self._now = self.lines[item.nodeid]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun = _used(os.getpid())

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] = _used(os.getpid()) - self._begun


_WITH_BODIES = (
    ast.If, ast.For, ast.While, ast.With, ast.Try, ast.ExceptHandler, ast.match_case
)  # fmt: skip


class Marker(ast.NodeTransformer):
    """Each statement of a function first says that it is reached. To trace every line would take
    several times as long: JAX has many more of them.
    """

    def __init__(self, path: str):
        self.path = path

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node, ast.FunctionDef):
            node.body = self._marked(node.body)
        for name in ("body", "orelse", "finalbody"):
            if isinstance(node, _WITH_BODIES):
                setattr(node, name, self._marked(getattr(node, name, [])))
        return node

    def _marked(self, body: list[ast.stmt]) -> list[ast.stmt]:
        marked = []
        for part in body:
            docstring = isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
            head = part.body[0].lineno - 1 if hasattr(part, "body") else part.end_lineno
            place = f"{self.path}:{part.lineno}:{max(head, part.lineno)}"
            mark = [ast.copy_location(m, part) for m in ast.parse(f"_reached.add({place!r})").body]
            marked += [part] if docstring else [*mark, part]
        return marked


def make_map(files: list[str], processes: int) -> dict[str, Any]:
    """The seconds of each test, and for each line of the core the tests that reach it: by its text
    rather than its number, so that a map outlives small changes.
    """
    made = json.loads(_MAP.read_text()) if _MAP.exists() else {"seconds": {}, "reach": {}}
    new = {name: sorted(_tests_in(name) - _known(made, name)) for name in TESTS}
    size = _PIECE if processes > 1 else max(map(len, new.values()), default=0) or 1
    pieces = [(n, t[i : i + size]) for n, t in new.items() for i in range(0, len(t), size)]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for name, answer in pool.imap_unordered(ft.partial(_map_piece, files=files), pieces):
            if not answer.startswith("{"):
                raise SystemExit(answer)
            _add_to_map(made, json.loads(answer))
            print(f"mapped tests of {name}", flush=True)
    return made


def _map_piece(piece: tuple[str, list[str]], *, files: list[str]) -> tuple[str, str]:
    return piece[0], fork(lambda: _map_tests(*piece, files)) or ""


def _add_to_map(made: dict[str, Any], found: dict[str, Any]) -> None:
    made["seconds"] |= found["seconds"]
    for line, tests in found["reach"].items():
        made["reach"].setdefault(line, []).extend(tests)
    _MAP.write_text(json.dumps(made))


def _tests_in(name: str) -> set[str]:
    parts = ast.parse((ROOT / f"tests/test_{name}.py").read_text()).body
    named = {part.name for part in parts if isinstance(part, ast.FunctionDef)}
    return {name for name in named if name.startswith("test_")}


def _known(made: dict[str, Any], name: str) -> set[str]:
    """The tests of a file of which there are seconds."""
    tests = [t for t in made["seconds"] if t.startswith(f"tests/test_{name}.py::")]
    return {test.partition("::")[2].partition("[")[0] for test in tests}


def _map_tests(name: str, tests: list[str], files: list[str]) -> str:
    reached, file = Reached(), f"tests/test_{name}.py"
    only = [f"{file}::{test}" for test in tests] if len(tests) < len(_tests_in(name)) else [file]
    with tempfile.TemporaryDirectory() as folder:
        copy_to(folder)
        for path in files:
            tree = Marker(path).visit(ast.parse(read(path)))
            Path(folder, path).write_text(ast.unparse(ast.fix_missing_locations(tree)))
        if not run_tests(folder, only, reached):
            raise RuntimeError(f"A test of {name} fails as it is.")
    texts, reach = {path: _lines(path) for path in files}, defaultdict(set)
    for test, places in reached.lines.items():
        for path, first, last in (place.split(":") for place in places):
            for number in range(int(first), int(last) + 1):
                reach[f"{path}: {texts[path][number - 1]}"].add(test)
    found = {line: sorted(tests) for line, tests in reach.items()}
    return json.dumps({"seconds": reached.seconds, "reach": found})


def _lines(file: str) -> list[str]:
    return [line.strip() for line in read(file).splitlines()]


class Plan(NamedTuple):
    """Runs of pytest, one after the other, and the seconds that they take as it is."""

    runs: list[list[str]]
    seconds: float


def plan_for(mutant: Mutant, made: dict[str, Any]) -> tuple[Plan, Plan]:
    """The tests that reach it, by file; and the others of these files, other cases of the same
    tests first: a program that was compiled for one test is run by the next, which then does not
    reach its lines.
    """
    seconds = lambda test: made["seconds"].get(test, 1.0)
    texts = [_lines(mutant.path)[number - 1] for number in mutant.lines()]
    lines = [f"{mutant.path}: {text}" for text in texts]
    if not any(line in made["reach"] for line in lines):  # A new line: as for the one above it.
        above = [f"{mutant.path}: {text}" for text in _lines(mutant.path)[: mutant.line]]
        lines = [line for line in above if line in made["reach"]][-1:]
    reach = {t for line in lines for t in made["reach"].get(line, ())}
    first, many = (_as_many(reach, seconds, most) for most in (1.5, _ENOUGH))
    runs = [*_by_file(first).values(), *_by_file(t for t in many if t not in first).values()]
    files, functions = {*_by_file(many)}, {_function_of(test) for test in many}
    others = [t for t in made["seconds"] if t.partition("::")[0] in files and t not in many]
    alike = lambda test: _function_of(test) in functions and not test.startswith(_SHORT)
    groups = filter(alike, others), (t for t in others if not alike(t))
    more = [*_by_file(t for g in groups for t in _as_many(g, seconds, _ENOUGH / 2)).values()]
    total = lambda runs: sum(seconds(test) for run in runs for test in run)
    return Plan(runs, total(runs)), Plan(more, total(more))


def _function_of(test: str) -> str:
    return test.partition("[")[0]


def _by_file(tests: Iterable[str]) -> dict[str, list[str]]:
    grouped = defaultdict(list)
    for test in tests:
        grouped[test.partition("::")[0]].append(test)
    return grouped


def _as_many(tests: Iterable[str], seconds: Callable[[str], float], most: float) -> list[str]:
    """The quickest test of each file, the next one of each, and so on, as many as take so long
    together, but at least one: a file of many quick tests has no more to say than the others.
    Those that take next to nothing all come first.
    """
    files = _by_file(sorted(tests, key=seconds)).values()
    free = lambda test: seconds(test) < _NOTHING and not test.startswith(_SHORT)
    turn = lambda place, test: 0 if free(test) else place
    turns = [(turn(i, test), seconds(test), test) for file in files for i, test in enumerate(file)]
    kept, total = [], 0.0
    for _, took, test in sorted(turns):
        total += took
        if kept and total > most:
            break
        kept.append(test)
    return kept


# --- mutants ---


def judge(mutant: Mutant, made: dict[str, Any], folder: str) -> str:
    """What caught it, or `""`."""
    reaching, others = plan_for(mutant, made)
    if not reaching.runs:
        return ""
    return meet(mutant, reaching, folder) or meet(mutant, others, folder)


def meet(mutant: Mutant, plan: Plan, folder: str) -> str:
    """The first test of a plan that fails, of the library in a folder."""
    place = Path(folder, mutant.path)

    def work() -> str:
        patch(mutant, str(place))
        for run in plan.runs:
            if not run_tests(folder, run):
                return f"a test of {run[0].partition('::')[0]}"
        return ""

    place.write_text(mutant.source())  # For processes that tests start.
    answer = fork(work, _SLOW * plan.seconds + _EXTRA)
    place.write_text(read(mutant.path))
    return "time" if answer is None else answer


def patch(mutant: Mutant, place: str) -> None:
    """Changes the functions that were imported."""
    codes = [_codes(compile(text, place, "exec")) for text in (read(mutant.path), mutant.source())]
    changed = {_name(old): new for old, new in zip(*codes, strict=True) if old != new}
    for function in [f for f in gc.get_objects() if isinstance(f, types.FunctionType)]:
        code = function.__code__
        if code.co_filename == place and _name(code) in changed:
            function.__code__ = changed[_name(code)]


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return [code, *(found for part in inner for found in _codes(part))]


def _name(code: types.CodeType) -> tuple:
    return code.co_qualname, code.co_firstlineno, code.co_freevars


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="jpc/")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path(os.devnull))
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    every = find_mutants(args.only)
    chosen = sample(every, args.count, args.seed)
    print(f"{sum(map(len, every.values()))} mutants, {len(chosen)} of them chosen")
    if args.show:
        print("\n".join(mutant.shown() for mutant in chosen))
        return
    import_others()
    made = make_map([file for part in PARTS for file in _files(part)], args.processes)
    caught, total = run(chosen, made, args)
    print(f"{caught} of {total} caught ({caught / max(total, 1):.1%})")


def run(chosen: list[Mutant], made: dict[str, Any], args: Any) -> tuple[int, int]:
    """How many are caught, of how many."""
    words, known = _read_results(args.results), {m for m in chosen if m.key() in EQUIVALENT}
    for mutant in known:
        print(f"{mutant.shown()}  equivalent", flush=True)
    words = {m: words[m.key()] for m in chosen if m.key() in words and m not in known}
    rest = [(i, m) for i, m in enumerate(chosen) if m not in known and not words.get(m)]
    last = time.monotonic() + 60 * args.minutes
    with multiprocessing.get_context("fork").Pool(args.processes, _begin, (made, last)) as pool:
        for mutant, by, seconds in pool.imap_unordered(_judge_in_time, rest):
            if by is None:
                continue
            words[mutant] = by
            with args.results.open("a") as file:
                print(json.dumps({"mutant": mutant.key(), "by": by}), file=file)
            word = f"caught by {by}" if by else "SURVIVED"
            print(f"{seconds:4.0f} s  {mutant.shown()}  {word}", flush=True)
    return sum(map(bool, words.values())), len(words)


def _read_results(file: Path) -> dict[str, str]:
    """By key, what caught a mutant in an earlier run, or `""`."""
    lines = map(json.loads, file.read_text().splitlines() if file.exists() else [])
    return {line["mutant"]: line["by"] for line in lines}


_here: dict[str, Any] = {}  # Of a process that judges: its copy, the map, and when it is to end.


def _begin(made: dict[str, Any], last: float) -> None:
    """In each process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    import_library(folder)
    _here.update(folder=folder, made=made, last=last)


def _judge_in_time(numbered: tuple[int, Mutant]) -> tuple[Mutant, str | None, float]:
    """What caught it, and in how many seconds; `None` if time is over."""
    (i, mutant), made, folder = numbered, _here["made"], _here["folder"]
    begin = time.monotonic()
    if begin > _here["last"]:
        return mutant, None, 0.0
    if i % _CONTROL == 0 and (by := meet(mutant.undone(), plan_for(mutant, made)[0], folder)):
        raise RuntimeError(f"The tests fail without a change: {by}")
    return mutant, judge(mutant, made, folder), time.monotonic() - begin


if __name__ == "__main__":
    main()
