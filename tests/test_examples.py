"""The examples run at their small size and show what they say; their pages are made from them."""

import importlib.util
import json
import re
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "examples"
spec = importlib.util.spec_from_file_location("render", PAGES / "render.py")
assert spec is not None and spec.loader is not None
render = importlib.util.module_from_spec(spec)
spec.loader.exec_module(render)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The names of an example that was run as its readers run it, but small."""
    plt.switch_backend("agg")
    monkeypatch.setenv("JPC_SMALL", "1")
    monkeypatch.chdir(tmp_path)

    def run(name):
        with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
            return render.run(render.read(name), figures=False)

    return run


def test_from_scratch(run):
    """The forces are those of the energy, by differences. The network learns."""
    names = run("01_from_scratch")
    assert np.allclose(names["force"][0, 0], -names["change"], rtol=1e-3)
    assert names["way"][-1].sum() < 0.7 * names["way"][0].sum()
    assert names["scores"][-1] > 80


def test_discriminative(run):
    names = run("02_discriminative")
    assert names["accuracies"][-1] > 85
    energies = [names[name].sum(axis=0) for name in ("before", "after")]
    assert all(np.all(np.diff(way) < 1e-6) for way in energies)
    assert energies[1][0] < 0.7 * energies[0][0]


# --- pages ---


def test_every_example_is_tested():
    tested = re.findall(r'run\("(\d\d_\w+)"\)', Path(__file__).read_text())
    assert sorted(tested) == render.NAMES


@pytest.mark.parametrize("name", render.NAMES)
def test_page_is_made_from_the_example(name):
    """Text and code of the page, the notebook and the file to download are those of the example,
    in their order; `make examples` makes them again.
    """
    source, page = (ROOT / "examples" / f"{name}.py").read_text(), PAGES / f"{name}.md"
    cells, text, begin = render.read(name), page.read_text(), 0
    for cell in cells:
        found = render.linked(cell.source) if cell.text else f"```python\n{cell.source}\n```"
        begin = text.index(found, begin) + len(found)
    assert (PAGES / f"{name}.py").read_text() == source
    notebook = json.loads((PAGES / f"{name}.ipynb").read_text())
    kept = [(cell["cell_type"], cell["source"]) for cell in notebook["cells"]]
    made = [(cell["cell_type"], cell["source"]) for cell in render.notebook(cells)["cells"]]
    assert kept == made
    figures = {Path(link).name for link in re.findall(r"\]\((figures/[^)]+)\)", text)}
    assert figures == {path.name for path in (PAGES / "figures").glob(f"{name}-*.svg")}
    assert figures and all(re.findall(r"!\[([^\]]*)\]", text))


@pytest.mark.parametrize("name", render.NAMES)
def test_an_example_has_a_title_and_says_what_to_try_next(name):
    first, *_, last = render.read(name)
    assert first.text and first.source.startswith("# ")
    assert last.text and "## What to try next" in last.source
