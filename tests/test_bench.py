"""`jpc bench`: the tables, what is kept of them, and what is said of it."""

import contextlib
import csv
import dataclasses
import itertools
import json
import statistics
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from scipy.stats import ttest_ind
from typer.testing import CliRunner

import jpc.bench
from jpc.bench import _run, _train
from jpc.bench._table import LOSSES, NETWORKS, RULES, SIZES, SUITES, make_layers
from jpc.cli.app import app


def invoke(*args):
    return CliRunner().invoke(app, ["bench", *map(str, args)])


def result_of(cell, accuracy):
    """As `run_cell` makes it."""
    look = dict(mean_eigenvalue=2.0, largest_eigenvalue=5.0, mean_sensitivity=0.1, angle=30.0)
    looks = [dict(epoch=epoch, successful=0.5, **look) for epoch in (0, cell.epochs)]
    tested = [accuracy] * cell.epochs
    return dict(accuracies=tested, regimes=looks, seconds=1.0, cost=1.5, memory=1.1)


@pytest.fixture
def pretended(monkeypatch):
    """Training that takes no time: backpropagation is better than all others by ten."""
    ran = []

    def run_cell(cell, programs, advance):
        advance(1.0)
        ran.append(cell)
        return result_of(cell, 80.0 + cell.seed + 10 * (cell.rule == "backprop"))

    monkeypatch.setattr(_run, "run_cell", run_cell)
    monkeypatch.setattr(_run, "compiling", contextlib.nullcontext)
    monkeypatch.setattr("jpc.data.where", lambda name: "here")
    return ran


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_tables_name_what_there_is(suite):
    for size in SIZES:
        cells = suite.cells(size)
        assert len(set(cells)) == len(cells) > 0
        for cell in cells:
            assert cell.network in NETWORKS and cell.rule in RULES and cell.loss in LOSSES
            assert (cell.strength is None) == (cell.rule in ("backprop", "sgd", "adam"))
        bases = {c.place for c in cells if c.rule == "backprop"}
        assert bases == {cell.place for cell in cells}  # There is something to compare with.


def test_every_rule_has_an_energy_and_a_method():
    for name, rule in RULES.items():
        strength = None if name in ("backprop", "sgd", "adam") else 1.0
        assert isinstance(rule.make(strength), jpc.AbstractInference)
    assert RULES["nudged-last"].energy("mse").precisions(4) == [1e8, 1e4, 1.0, 1.0]
    assert RULES["plain"].energy("ce").loss is jpc.cross_entropy


def test_every_rule_of_a_place_has_the_same_optimiser():
    for size, suite in itertools.product(SIZES, SUITES.values()):
        told = {(cell.place, cell.optimiser) for cell in suite.cells(size)}
        assert len(told) == len({place for place, _ in told})
    clipped = dataclasses.replace(SUITES["deep"].cells("smoke")[0], clip=0.5)
    optim = _train.optimiser(clipped, steps=3)
    states = [optim.update(g, optim.init(g), g)[1] for g in (jnp.ones(4), 100 * jnp.ones(4))]
    first, second = map(jax.tree.leaves, states)  # Both are of length 0.5 then.
    assert all(jnp.allclose(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_predict(name):
    cell = dataclasses.replace(SUITES["deep"].cells("smoke")[0], network=name, width=4)
    shape = (3, 16, 16) if NETWORKS[name].images else (12,)
    layers = make_layers(cell, shape, 5)
    states = eqx.filter_eval_shape(jpc.feedforward, layers, jnp.ones(shape))
    assert states[-1].shape == (5,)


def test_trains_measures_and_goes_on(tmp_path, monkeypatch):
    run = lambda *args: invoke("deep", "--smoke", "--seeds", 1, "--out", tmp_path, *args)
    assert run("--quiet").exit_code == 0
    lines = (tmp_path / "cells.jsonl").read_text().splitlines()
    found = {json.loads(line)["cell"]["rule"]: json.loads(line)["found"] for line in lines}
    assert found.keys() == {"backprop", "nudged"}
    for rule, mine in found.items():
        assert len(mine["accuracies"]) == 1 and 0 <= mine["accuracies"][0] <= 100
        first, last = mine["regimes"]
        assert (first["epoch"], last["epoch"]) == (0, 1)
        assert mine["cost"] > 0 and mine["memory"] > 0
        assert (last["angle"] < 0.1) == (rule == "backprop")
    # Strength is the mean eigenvalue of S less one, but for what four examples share.
    assert abs(found["nudged"]["regimes"][0]["mean_eigenvalue"] - 2) < 0.2
    monkeypatch.setattr(_run, "run_cell", None)  # Nothing is trained again.
    said = run().output
    assert "1 epoch" in said and "Not run:" in said and (tmp_path / "deep.png").stat().st_size > 0


def test_says_what_was_found(tmp_path, pretended, monkeypatch):
    monkeypatch.setattr("jpc.bench._report._picture", lambda kind, found, path: "")
    text = invoke("deep", "--out", tmp_path, "--full", "--network", "vgg5", "--seeds", 2).output
    ends = [90.0, 91.0], [80.0, 81.0]
    many = len({c.named for c in pretended if c.place == pretended[0].place}) - 1
    p = min(1, many * ttest_ind(*ends, equal_var=False).pvalue)
    spread = statistics.stdev(ends[0])
    assert f"| backprop | 2 | 90.50 ± {spread:.2f} |  | 1 | 1 | 1 | 0 |  |" in text
    assert f"| nudged-last 1 | 2 | 80.50 ± {spread:.2f} | {p:.2g}" in text
    assert "| 1.50 | 1.10 | 2 | 30° | 50% |" in text
    assert "- vgg7 on cifar10, mse, 25 epochs, clipped, seed 0, 1, 2: all rules" in text
    rows = list(csv.DictReader((tmp_path / "deep.csv").read_text().splitlines()))
    assert len(rows) == 2 * len(pretended)
    assert {row["accuracy"] for row in rows} == {"", "80.0", "81.0", "90.0", "91.0"}


def test_draws_what_there_is(tmp_path, pretended):
    invoke("regime", "--out", tmp_path, "--smoke", "--rule", "plain", "--seeds", 1)
    count = len(pretended)
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write('{"cell": {"network"')  # The writing of a line was interrupted.
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # The command shows them.
        said = invoke("regime", "--out", tmp_path, "--smoke", "--draw")
    assert said.exit_code == 0 and len(pretended) == count
    assert "has lines that are no results: 3" in said.output
    assert (tmp_path / "regime.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["dep"], "Did you mean deep"),
        (["deep", "--network", "vgg"], "is no network"),
        (["deep", "--rule", "nudge"], "Did you mean nudged"),
        (["deep", "--network", "vgg5"], "with --full, more"),
        (["deep", "--smoke", "--full"], "two sizes"),
        (["deep", "--draw", "--out", "nowhere"], "Nothing of deep was run"),
    ],
)
def test_wrong_use(args, said):
    result = invoke(*args)
    assert result.exit_code in (1, 2) and said in result.output


def test_data_that_is_not_here(tmp_path, monkeypatch):
    monkeypatch.setattr("jpc.data.where", lambda name: None)
    result = invoke("regime", "--out", tmp_path)
    assert result.exit_code == 1 and "jpc data fetch fashion-mnist" in result.output


def test_a_batch_must_fit():
    cell = dataclasses.replace(SUITES["deep"].cells("smoke")[0], batch=10_000)
    with pytest.raises(ValueError, match="fewer than 10000 examples"):
        _train.steps_of(cell, _train.load("digits", False))
