"""The examples run at their small size and show what they say; their pages are made from them."""

import importlib.util
import json
import re
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

import jpc

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


@pytest.mark.slow
def test_discriminative(run):
    names = run("02_discriminative")
    assert names["accuracies"][-1] > 85
    energies = [names[name].sum(axis=0) for name in ("before", "after")]
    assert all(np.all(np.diff(way) < 1e-6) for way in energies)
    assert energies[1][0] < 0.7 * energies[0][0]


@pytest.mark.slow
def test_exact_inference(run):
    """Each example converges. The flow ends above, and its slope is steeper; so the last layers
    learn sooner than the first.
    """
    names = run("03_exact_inference")
    assert names["slope"](names["exact"].nodes) < 0.2 * names["slope"](names["flow"].nodes)
    assert np.all(names["exact"].result == jpc.RESULTS.successful)
    (share,), (wrong,) = names["left"].values(), names["wrong"].values()
    assert share[0] == 1 and abs(share[-1]) < 1e-3
    assert wrong[2][0] > 2 * wrong[2][-1] and wrong[20][0] < wrong[2][0]


@pytest.mark.slow
def test_linear_theory(run):
    """By hand, by the library and by inference; predictive coding leaves the saddle first."""
    names = run("04_linear_theory")
    assert np.allclose(names["by_hand"], names["by_library"], rtol=1e-5)
    assert np.allclose(names["by_hand"], names["energies"][-1], rtol=1e-4)
    losses = names["losses"]
    assert losses["predictive coding"][-1] < 0.5 * losses["backpropagation"][-1]


@pytest.mark.slow
def test_deep_networks(run):
    """With a growing precision the angle to backpropagation grows from 0; so does `S` from 1. Up
    to 0.01 the angle is below two degrees.
    """
    names = run("05_deep_networks")
    angles, eigenvalues = names["angles"], names["eigenvalues"]
    assert max(np.array(angles)[names["precisions"] <= 0.01]) < 2
    assert angles[0] < 0.5 and angles[-1] > 10 and np.all(np.diff(angles) > -0.5)
    assert abs(eigenvalues[0] - 1) < 0.01 and np.all(np.diff(eigenvalues) > -1e-3)
    assert all(curve[-1] > 70 for curve in names["curves"].values())


@pytest.mark.slow
def test_mupc(run):
    """A learning rate between the extremes is best."""
    names = run("06_mupc")
    (row,) = (row for (kind, _), row in names["losses"].items() if kind == "mupc")
    assert min(row) < 0.7 * min(row[0], row[-1])


@pytest.mark.slow
def test_generative(run):
    names = run("07_generative")
    assert names["away"] < 0.5 * names["spread"]
    assert names["right"][0].mean() < 0.2 and names["right"][-1].mean() > 0.7


@pytest.mark.slow
def test_monte_carlo(run):
    """Dreams are nearer to real images than random pixels are, and means of explanations nearer
    to their images than other images are.
    """
    names = run("08_monte_carlo")
    away = names["away"]
    assert away["new images"] < away["learned from samples"] < 0.8 * away["random pixels"]
    errors = np.abs(names["mean"] - names["given"]).mean()
    assert errors < np.abs(names["mean"] - names["given"][::-1]).mean()


@pytest.mark.slow
def test_hybrid(run):
    names = run("09_hybrid")
    guess, nothing = names["curves"].values()
    assert guess[0] > 60 and nothing[0] < 20 and nothing[-1] > 60
    assert names["found"]["guess"][0] < 0.7 * names["found"]["nothing"][0]


@pytest.mark.slow
def test_bidirectional(run):
    """The sweep by hand is that of `evaluate_bpc`."""
    names = run("10_bidirectional")
    assert names["accuracies"][-1] > 80
    right = 100 * np.mean(names["guesses"] == names["test_labels"])
    assert np.allclose(right, names["accuracies"][-1], atol=1e-3)


@pytest.mark.slow
def test_memory(run):
    names = run("11_memory")
    assert names["shares"] == [100.0]
    assert names["wrong"] < 0.3 * names["mean"]


@pytest.mark.slow
def test_temporal(run):
    """By the closed form of a step, and by Kalman's smoother."""
    names = run("12_temporal")
    assert names["away"] < 1e-4 and names["difference"] < 1e-3
    score, errors = names["score"], names["errors"]
    assert score(names["means"]) < score(names["filtered"]) < score(names["seen"])
    assert errors[30] < errors[1]


@pytest.mark.slow
def test_two_senses(run):
    """What is given stays, and what is not is better than the mean image."""
    names = run("13_two_senses")
    half, pictures = names["half"]["sight"], names["pictures"]
    assert np.array_equal(half[:, :32], pictures[:, :32])
    assert names["score"](names["seen"]) > 60
    assert names["wrong"](names["told"]) < names["guess"]


@pytest.mark.slow
def test_own_energy(run):
    names = run("14_own_energy")
    assert np.allclose(*names["same"], rtol=1e-5) and np.allclose(*names["ends"], rtol=1e-3)
    assert names["errors"]["robust"] < 0.6 * names["errors"]["squared"]


@pytest.mark.slow
def test_own_data(run):
    names = run("15_own_data")
    assert min(names["accuracies"][-1], names["baseline"][-1]) > 2 * names["common"]
    assert names["counts"].sum() == 200 and len(names["found"][0]) == 3


@pytest.mark.slow
def test_research_loop(run):
    names = run("16_research_loop")
    assert len(names["rows"]) == 4 and (names["folder"] / "steps.pdf").is_file()
    assert np.allclose(names["holm"](np.array([0.01, 0.04, 0.03])), [0.03, 0.06, 0.06])
    assert names["test"].mean() > 50


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
