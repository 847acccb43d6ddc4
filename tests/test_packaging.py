"""What the distribution says of itself, and what we tell people to install."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOREIGN = re.compile(r"pip install[^\n#]*?[\s'\"]jpc(\[|['\"\s]|$)|['\"]jpc\[")


def test_distribution_is_not_that_of_the_original():
    assert PROJECT["name"] != "jpc"
    assert PROJECT["scripts"] == {"jpc": "jpc.cli:main"}


def test_everything_that_the_core_imports_is_declared():
    names = {re.split(r"[<>=\[]", line)[0] for line in PROJECT["dependencies"]}
    core = [p for p in (ROOT / "jpc").rglob("*.py") if p.parts[-2] not in ("cli", "experiments")]
    found = re.findall(
        r"^(?:import|from) (\w+)", "\n".join(path.read_text() for path in core), re.MULTILINE
    )
    known = {"jax", "numpy", "jaxtyping", "equinox", "diffrax", "optax", "optimistix", "lineax"}
    assert known & set(found) <= names


def test_nobody_is_sent_to_the_original():
    """By a message, a page or a comment of ours."""
    folders = [ROOT / name for name in ("jpc", "docs", "examples", "benchmarks")]
    files = [
        path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".md")
    ]
    texts = {path: path.read_text() for path in [*files, ROOT / "README.md", ROOT / "Makefile"]}
    assert [path for path, text in texts.items() if FOREIGN.search(text)] == []
    assert FOREIGN.search("pip install 'jpc[train]'.")
    assert FOREIGN.search("pip install jpc")
    assert not FOREIGN.search("pip install -e '.[train]' in the folder of JPC")
