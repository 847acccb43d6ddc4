"""The code on the pages of the documentation, run as it is printed."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import jpc
from jpc.cli.config import METHOD_OPTIONS

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "learn.md").read_text()
OWN_NETWORK = "## With a network of your own"


def fenced(text):
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run(page, begin="", end="No such heading"):
    """What the code of a page makes, from a heading on and up to another."""
    names, text = {}, (DOCS / page).read_text()
    for block in fenced(text[text.index(begin) :].partition(end)[0]):
        exec(block, names)
    return names


@pytest.mark.slow
def test_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run("training.md")
    assert names["history"][-1]["loss"] < names["history"][0]["loss"]
    assert [record["epoch"] for record in names["resumed"].history] == [1, 2, 3, 4]
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("epoch") for line in lines) == len(names["history"]) + 1


def test_learn():
    """By hand: F = (z - 0.5)^2 / 2 + p (2 - 2 z)^2 / 2, so that z = (0.5 + 4 p) / (1 + 4 p). The
    table of the page is what its code makes.
    """
    names = run("learn.md")
    found = [float(names[name].sum()) for name in ("before", "after", "hidden", "first", "second")]
    assert np.allclose(found, [0.5, 0.1, 0.9, -0.4, -0.18], atol=1e-6)
    comments = re.findall(r"^(?:before|after|hidden|first, second) = .*  # (.*)$", TEXT, re.M)
    said = re.findall(r"-?[\d.]+", " ".join(comments))
    assert np.allclose(found, np.asarray(said, float), atol=1e-6)
    row = r"^\| ([\d.]+|backpropagation) \| ([\d.]+) \| (-[\d.]+) \| (-[\d.]+) \|$"
    *rows, (last, *limit) = re.findall(row, TEXT, re.MULTILINE)
    assert len(rows) == len(names["table"]) == 4
    for p, *said in rows:
        found = [(0.5 + 4 * float(p)) / (1 + 4 * float(p)), *names["table"][float(p)]]
        assert np.allclose(np.asarray(said, float), found, rtol=4e-3)
    assert last == "backpropagation" and limit == ["0.5", "-2", "-0.5"]


@pytest.mark.slow
def test_devices():
    names = run("devices.md")
    losses = [record["loss"] for record in names["fitted"].history]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.slow
def test_networks():
    """Graphs and energies of one's own end at equilibrium, by their gradients; what is given
    stays.
    """
    names = run("networks.md")
    for inferred in (names["inferred"], names["twin"]):
        assert np.all(inferred.result == jpc.RESULTS.successful)
        assert np.all(inferred.stats["gradient_norm"] < 1e-2)
    image, seen = names["image"], np.asarray(names["seen"])
    for filled in (names["completed"], names["recalled"]):
        assert np.array_equal(np.asarray(filled)[seen], np.asarray(image)[seen])
        assert not np.any(np.asarray(filled)[~seen] == np.asarray(image)[~seen])
    assert names["log_precision"].shape == (3,) and np.all(names["log_precision"] != 0)
    assert np.any(names["slope"] != 0)


@pytest.mark.slow
def test_write_your_own():
    """Energies, losses, layers, methods, steps and graphs of one's own: inference descends, stops
    where it says, and is that of the linear graph, whose causes have a closed form.
    """
    names = run("extend.md")
    model, y, x = (names[name] for name in ("model", "y", "x"))
    start, end = (
        names["robust"](model, *jpc.clamp(activities[:-1], y, x))
        for activities in (names["activities"], names["inferred"])
    )
    assert end < start
    result = names["result"]
    assert np.all(result["result"] == jpc.RESULTS.stopped_early)
    assert np.all(result["stats"]["steps"] == 10) and len(result["stats"]["steps"]) == 64
    energies = [record["energy"] for record in names["fitted"].history]
    assert energies[-1] < 0.7 * energies[0]
    layers, given = names["params"].values(), names["given"].values()
    weight = np.concatenate([layer.weight for layer in layers])
    left = np.concatenate(list(given), axis=1) - np.concatenate([layer.bias for layer in layers])
    causes = np.linalg.solve(np.eye(2) + weight.T @ weight, weight.T @ left.T).T
    np.testing.assert_allclose(names["causes"], causes, rtol=0.05, atol=0.02)


@pytest.mark.slow
def test_layers():
    """A transformer and a network with dropout learn."""
    names = run("variants/layers.md")
    assert names["losses"][-1] < 0.7 * names["losses"][0]
    history = names["fitted"].history
    assert history[-1]["loss"] < history[0]["loss"]
    assert all(layer.key is None for layer in names["fitted"].state["model"])


def test_incremental():
    names = run("variants/ipc.md")
    assert names["fitted"].history[-1]["test_acc"] > 90
    assert names["result"]["energies"].shape == (3, 20)


@pytest.mark.slow
def test_error_coordinates():
    """The energy at the end of inference falls, and the step of `fit` has the same."""
    names = run("variants/epc.md")
    energies = names["energies"]
    assert energies[-1] < 0.2 * energies[0]
    assert np.sum(names["result"]["energies"]) < energies[-1]


@pytest.mark.slow
def test_mupc():
    assert run("variants/mupc.md")["accuracy"] > 85


@pytest.mark.slow
def test_rules_of_learning():
    names = run("variants/rules.md")
    assert names["result"]["stats"]["precision"].shape == (32,)
    assert 0 < names["angle"] < 90 and np.all(names["eigenvalues"] > 1)


def test_what_to_begin_with_is_what_the_command_does():
    settings = run("choose.md")["settings"]
    assert settings["inference"].chords == METHOD_OPTIONS["equilibrium"]["chords"]
    assert settings["inference"].rtol == METHOD_OPTIONS["equilibrium"]["rtol"]
    assert settings["energy"].loss is jpc.cross_entropy


def test_derivation_ends_at_equilibrium():
    """By the gradient of the energy in the states, which no line of the page knows of."""
    names = run("derivation.md")
    batch = [state[None] for state in names["states"]]
    nodes, clamps = jpc.clamp(batch, names["y"][None], names["x"][None])
    energy = jpc.PCEnergy()
    moves = jax.grad(lambda nodes: energy(names["model"], nodes, clamps))(nodes)
    assert all(np.abs(move).max() < 1e-8 for move in jax.tree.leaves(moves))


def test_data(tmp_path, monkeypatch, capsys):
    """What the comments of the page say, of a table of 150 flowers of three kinds."""
    monkeypatch.chdir(tmp_path)
    kinds = np.repeat(["setosa", "versicolor", "virginica"], 50)
    rows = np.random.default_rng(0).normal(size=(150, 4))
    lines = [",".join([*map(str, row), kind]) for row, kind in zip(rows, kinds, strict=True)]
    Path("my.csv").write_text("\n".join(["a,b,c,d,kind", *lines]))
    names = run("data.md")
    assert names["pictures"].shape == (8, 1, 8, 8)
    assert names["pictures"].min() >= 0 and names["pictures"].max() <= 1
    said = "my.csv: 120 to train, 30 to test; 4 features; 3 classes: setosa"
    assert said in capsys.readouterr().out and said in (DOCS / "data.md").read_text()
    assert names["images"].shape == (1437, 1, 8, 8)


def told(page, before, after):
    """The number between these words of a page."""
    text = " ".join((DOCS / page).read_text().split())
    (number,) = re.findall(rf"{re.escape(before)}([\d.e-]+){re.escape(after)}", text)
    return float(number)


@pytest.mark.slow
def test_diagnose():
    """What the comments say of the patient, also in double precision."""
    names = run("diagnose.md")
    assert names["arrived"] == 0 and 0.05 < names["excess"] < 0.15
    assert 0.4 < names["error"] < 0.7 and 0.7 < names["relaxed"] < 0.9
    assert names["by_layer"][0] > 0.99 and names["by_layer"][-1] < 0.6
    energies = names["energies"]
    assert energies[0] < 1e-13 and 0.2 < energies[-1] < 0.5 and np.all(np.diff(energies) > 0)
    angle = told("diagnose.md", "single precision, and of ", " degrees in double")
    assert abs(names["angles"][0] - angle) < 0.5


@pytest.mark.slow
def test_diagnose_in_single_precision():
    """The numbers of the page, which its readers see. What the first layer learns is mostly
    rounding: another machine has another angle.
    """
    with jax.enable_x64(False):
        names = run("diagnose.md")
    energies, by_layer = names["energies"], names["by_layer"]
    for before, after, found in [
        ('excess = gap["excess"] / gap["energy"] # ', ": the", names["excess"]),
        ('error = gap["gradient_error"] # ', ": what", names["error"]),
        ("# ", " at first", by_layer[0]),
        ("at first, ", " at the last", by_layer[-1]),
        ("at the first layer to ", " at the output", energies[-1]),
        ('relaxed"] # ', " of the energy", names["relaxed"]),
    ]:
        assert np.isclose(found, told("diagnose.md", before, after), rtol=0.1), before
    first = told("diagnose.md", 'energies"] # From ', " at the first layer")
    assert 0.5 < energies[0] / first < 2
    angle = told("diagnose.md", "angle of ", " degrees in single")
    assert abs(names["angles"][0] - angle) < 6


@pytest.mark.slow
def test_picture_that_can_be_played_with(monkeypatch):
    """Its numbers are those that the code behind it makes, in single precision as there."""
    monkeypatch.syspath_prepend(DOCS / "figures")
    with jax.enable_x64(False):
        times, energies = importlib.import_module("learn").spreading()
    told = (DOCS / "figures/spreading.js").read_text().partition(" = ")[2]
    shown = json.loads(told.rstrip().rstrip(";"))
    assert shown["times"] == times.tolist() and energies.shape == (4, len(times))
    np.testing.assert_allclose(shown["energies"], energies, rtol=5e-3, atol=1e-5)


@pytest.mark.slow
def test_figure_of_the_regime(monkeypatch):
    """What the page says of it, of the network that it is drawn from."""
    monkeypatch.syspath_prepend(DOCS / "figures")
    drawn = importlib.import_module("learn")
    (x, y), model = drawn.digits(), drawn.network()
    angles = [
        jpc.regime((model, None), y, x, inference=jpc.Equilibrium(), output_energy_scaling=p)[
            "angle"
        ]
        for p in (1e-2, 10.0, 100.0)
    ]
    assert angles[0] < 0.5 and angles[1] > 45 and 55 < angles[2] < 65


@pytest.mark.slow
def test_deep():
    """Every layer of twenty has something to learn from."""
    names = run("deep.md")
    assert np.all(np.asarray(names["reached"]) > 1e-6) and len(names["reached"]) == 20
    assert np.all(np.isfinite(names["result"]["energies"]))


@pytest.mark.slow
def test_train_on_your_data(tmp_path, monkeypatch):
    """New leaves are found to be of the tree whose typical leaf is nearest."""
    monkeypatch.chdir(tmp_path)
    names = run("own.md", end=OWN_NETWORK)
    assert names["accuracy"] > 90 and names["how_sure"].min() > 0.9
    leaves = np.loadtxt("new.csv", delimiter=",", skiprows=1)
    typical = np.array(list(names["typical"].values()))
    nearest = np.argmin(np.linalg.norm(leaves[:, None] - typical, axis=2), axis=1)
    assert names["trees"] == [list(names["typical"])[i] for i in nearest]
    assert (
        "\n    ".join(Path("leaves.csv").read_text().splitlines()[:3])
        in (DOCS / "own.md").read_text()
    )


@pytest.mark.slow
def test_train_on_your_data_with_the_command(tmp_path, monkeypatch):
    """Its three lines, as they are printed, end with the prediction that the page shows."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "own.md").read_text()
    exec(fenced(text)[0], {})
    lines = re.findall(r"^ {4}jpc (.*)$", text, re.MULTILINE)
    for line in lines:
        subprocess.run([sys.executable, "-m", "jpc", *line.split()], check=True)
    (said,) = re.findall(r"example,class,probability\n +(.*)\n", text)
    found = Path("predictions.csv").read_text().splitlines()[1]
    assert len(lines) == 3 and found.rpartition(",")[0] == said.rpartition(",")[0]
    assert abs(float(found.split(",")[2]) - float(said.split(",")[2])) < 1e-3
    assert Path("runs/leaves/report.html").is_file()


@pytest.mark.slow
def test_network_of_your_own(tmp_path, monkeypatch):
    """It tells lines apart, where chance is a half, and the file has the same network. A module
    and the list of its parts predict the same.
    """
    monkeypatch.chdir(tmp_path)
    names = run("own.md", OWN_NETWORK)
    assert names["right"] > 0.9
    ones = jax.numpy.ones(4)
    assert np.allclose(jpc.feedforward(names["parts"], ones)[-1], names["mlp"](ones))
    weights = (jax.tree.leaves(eqx.filter(names[n], eqx.is_array)) for n in ("network", "again"))
    assert all(np.array_equal(one, other) for one, other in zip(*weights, strict=True))


@pytest.mark.slow
def test_reproduce(tmp_path, monkeypatch):
    """The four files that the page names are there."""
    monkeypatch.chdir(tmp_path)
    page = run("reproduce.md")["page"]
    assert page == Path("results/fig1.md")
    assert all(page.with_suffix(suffix).is_file() for suffix in (".md", ".csv", ".png", ".pdf"))


@pytest.mark.slow
def test_monte_carlo():
    """Images are drawn, and learned from: bits are set about as often as they are."""
    names = run("variants/mcpc.md")
    assert names["drawn"].shape == (10, 8)
    energies = [record["energy"] for record in names["fitted"].history]
    assert energies[-1] < energies[0]


@pytest.mark.slow
def test_memory():
    """The half that was not seen is closer to the one stored than chance, which is a half."""
    names = run("variants/memory.md")
    hidden = ~np.asarray(names["seen"])
    apart = np.abs(np.asarray(names["recalled"]) - np.asarray(names["images"]))
    assert np.mean(apart[hidden]) < 0.25


def test_no_page_is_left_out():
    """Every page with code is run by some test."""
    tests = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    ran = set(re.findall(r'run(?:_page)?\("([\w/-]+\.md)"', tests))
    ran |= {"index.md", "api/index.md"}  # By test_readme.py.
    pages = {path.relative_to(DOCS).as_posix(): path.read_text() for path in DOCS.rglob("*.md")}
    # Those of the examples are written, and run, by tests of their own.
    own = {name: text for name, text in pages.items() if not name.startswith("examples/")}
    assert {name for name, text in own.items() if re.search(r"^ *```py", text, re.M)} == ran
    for text in own.values():  # Indented fences, and other spellings, are not run.
        assert len(fenced(text)) == len(re.findall(r"^ *```(?:py|\{)", text, re.MULTILINE))
    bare = {
        name: re.sub(r"^```.*?^```", "", text, flags=re.M | re.S) for name, text in own.items()
    }
    indented = {
        name
        for name, text in bare.items()
        if re.search(r"^ {4}(import |from |def |\w+ = [\w.]*[({\[])", text, re.M)
    }
    assert indented == {"devices.md"}  # Several machines: see train_on_devices.py.
