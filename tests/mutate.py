"""Would our tests notice? Changes the library in one place at a time, and runs its tests.

    python tests/mutate.py [--count 100] [--seed 0] [--jobs 2] [--only jpc/_energy] [--show]

Mutants are drawn at random from the core: energies, inference, learning, theory, metrics. Each is
one change of an operator, a comparison, a number or a function; of messages, annotations and
defaults none is made. A mutant is caught if one of the tests of its module fails, or takes too
long. Survivors are listed with their line; those that are equivalent are in `EQUIVALENT`, with
the reason. `--show` lists the mutants and runs nothing.
"""

import argparse
import ast
import concurrent.futures as cf
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# Which tests are to notice, the quick ones first: the first entry whose path fits.
TESTS: dict[str, list[str]] = {
    "jpc/_theory": ["theory"],
    "jpc/_energy": ["energy", "network", "learn", "graph", "masks", "learning_rules", "methods"],
    "jpc/_inference/nudged.py": ["learning_rules", "regime"],
    "jpc/_inference/backprop.py": ["learning_rules", "regime"],
    "jpc/_inference/forward.py": ["learning_rules", "regime"],
    "jpc/_inference/flow.py": ["flow", "methods", "agreement"],
    "jpc/_inference/descent.py": ["methods", "agreement"],
    "jpc/_inference/langevin.py": ["methods", "mcpc"],
    "jpc/_inference/minimise.py": ["methods", "agreement"],
    "jpc/_inference/implicit.py": ["implicit"],
    "jpc/_inference/kinks.py": ["kinks", "equilibrium"],
    "jpc/_inference": ["methods", "equilibrium", "kinks", "agreement", "flow"],
    "jpc/_regime.py": ["regime"],
    "jpc/_gap.py": ["equilibrium", "energy", "methods"],
    "jpc/_metrics.py": ["learn", "step", "errors"],
    "jpc/_learn.py": ["learn", "step"],
    "jpc/_solve.py": ["solve", "equilibrium"],
    "jpc/_clamp.py": ["masks", "graph", "energy"],
    "jpc/_layer.py": ["layer", "energy", "step"],
}
# `file: line as it is -> line as it was made`, and why nothing can notice.
EQUIVALENT: dict[str, str] = {}
_LIMIT = 400.0  # Seconds for the tests of one mutant.
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


class Mutant(NamedTuple):
    path: str
    line: int
    begin: int
    end: int
    new: str

    def source(self) -> str:
        text = (ROOT / self.path).read_text()
        return text[: self.begin] + self.new + text[self.end :]

    def shown(self) -> str:
        text = (ROOT / self.path).read_text()
        return f"{self.path}:{self.line}: {text[self.begin : self.end]} -> {self.new}"


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


def find_mutants(only: str) -> list[Mutant]:
    found = []
    for place in TESTS:
        target = ROOT / place
        files = sorted(target.glob("*.py")) if target.is_dir() else [target]
        for file in files:
            path = str(file.relative_to(ROOT))
            if path.startswith(only):
                finder = Finder(path, text := file.read_text())
                for part in ast.parse(text).body:
                    if not isinstance(part, ast.Assign):  # Settings, that are not wrong but worse.
                        finder.visit(part)
                found += finder.found
    return list(dict.fromkeys(found))


def tests_of(path: str) -> list[str]:
    place = next(place for place in sorted(TESTS, key=len, reverse=True) if path.startswith(place))
    return [f"tests/test_{name}.py" for name in TESTS[place]]


def survives(mutant: Mutant) -> tuple[bool, float]:
    """Whether no test fails, and how long that took."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("jpc", "tests", "examples", "benchmarks", "docs"):
            shutil.copytree(
                ROOT / name, f"{folder}/{name}", ignore=shutil.ignore_patterns("*.png")
            )
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, folder)
        (Path(folder) / mutant.path).write_text(mutant.source())
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += [*tests_of(mutant.path), "-k", "not deep and not 100"]
        env = os.environ | {"PYTHONPATH": folder}
        try:
            done = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, timeout=_LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return False, time.monotonic() - begin
    return done.returncode == 0, time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="jpc/")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    every = find_mutants(args.only)
    chosen = random.Random(args.seed).sample(every, min(args.count, len(every)))
    print(f"{len(every)} mutants, {len(chosen)} of them chosen")
    if args.show:
        print("\n".join(mutant.shown() for mutant in chosen))
        return
    caught, lived, begin = 0, [], time.monotonic()
    late = lambda: time.monotonic() - begin > 60 * args.minutes
    judge = lambda mutant: None if late() else survives(mutant)
    with cf.ThreadPoolExecutor(args.jobs) as pool:
        for mutant, answer in zip(chosen, pool.map(judge, chosen), strict=True):
            if answer is None:
                continue
            lives, seconds = answer
            known = mutant.shown() in EQUIVALENT
            caught += not lives
            lived += [mutant] if lives and not known else []
            word = "caught" if not lives else "equivalent" if known else "SURVIVED"
            print(f"{word:10s} {seconds:4.0f} s  {mutant.shown()}", flush=True)
    total = caught + len(lived)
    print(f"{caught} of {total} caught ({caught / max(total, 1):.1%})")


if __name__ == "__main__":
    main()
