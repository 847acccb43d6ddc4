"""The paper's experiments, at their smallest size, on the digits that come with JPC."""

import contextlib
import csv
import dataclasses
import functools as ft
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_close, slowly
from jaxtyping import install_import_hook
from typer.testing import CliRunner

import jpc

with install_import_hook("jpc.experiments", "beartype.beartype"):
    from jpc.cli.app import app
    from jpc.experiments import (
        FIGURES,
        SIZES,
        _run as run_module,
        _tables as tables,
        _train as train_module,
        reproduce,
    )
    from jpc.experiments._cell import Cell, Store
    from jpc.experiments._methods import paper_flow
    from jpc.experiments._run import plan
    from jpc.experiments._train import assemble, run_cells, stack_data

CELL = Cell(
    measure="accuracy", dataset="digits", hidden=2, solver="euler", t1=2, dt=0.5, seed=0, steps=4,
    points=2, width=8,
)  # fmt: skip
SMOKE, FULL = SIZES["smoke"], SIZES["full"]
HERE = {"date": "2026-01-01", "device": "cpu", "products": "float32", "jax": "1", "jpc": "1"}
quietly = lambda part: None


def invoke(*args):
    return CliRunner().invoke(app, ["reproduce", *map(str, args)])


def read(path):
    with open(path) as file:
        return list(csv.DictReader(file))


OFTEN = ("fig1", "fig4")  # The others wait for `make slow`.
NAMES = [pytest.param(n, marks=[pytest.mark.slow] * (n not in OFTEN)) for n in FIGURES]


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """A figure, once."""
    folder = tmp_path_factory.mktemp("reproduction")

    @ft.cache
    def make(name):
        result = invoke(name, "--smoke", "--out", folder, "--debug")
        assert result.exit_code == 0, result.output
        return folder

    return make


@pytest.fixture(scope="module")
def out(make):
    return [make(name) for name in OFTEN][-1]


# --- the command ---


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_has_its_files(make, name):
    out = make(name)
    cells = FIGURES[name].cells(SMOKE)
    rows = read(out / f"{name}.csv")
    fields = [field.name for field in dataclasses.fields(Cell)]
    key = lambda values: tuple(str(values[field]) for field in fields)
    assert {key(row) for row in rows} == {key(dataclasses.asdict(cell)) for cell in cells}
    assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (out / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    text = (out / f"{name}.md").read_text()
    for part in (FIGURES[name].title, f"jpc reproduce {name} --smoke --out", f"{name}.png"):
        assert part in text
    assert "Not run" not in text


def test_what_is_there_is_not_run_again(out, monkeypatch):
    before = (out / "fig1.csv").read_bytes()
    monkeypatch.setattr(run_module, "run_cells", None)
    assert invoke("fig1", "--smoke", "--out", out).exit_code == 0
    assert (out / "fig1.csv").read_bytes() == before


def test_it_goes_on_where_it_was_interrupted(tmp_path, out, monkeypatch):
    """The first of its networks is done when it is interrupted, in the second."""
    calls = []

    def interrupted(cells, advance):
        calls.append(cells)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run_cells(cells, advance)

    monkeypatch.setattr(run_module, "run_cells", interrupted)
    result = invoke("fig4", "--smoke", "--out", tmp_path)
    assert result.exit_code == 130
    assert "the same command goes on" in result.output
    assert invoke("fig4", "--smoke", "--out", tmp_path, "--draw").exit_code == 0
    assert "Not run:" in (tmp_path / "fig4.md").read_text()
    assert len(tables.group(read(tmp_path / "fig4.csv"), "t1", "dt", "solver", "seed")) == 1
    result = invoke("fig4", "--smoke", "--out", tmp_path)
    assert result.exit_code == 0
    every = [cell for job in calls for cell in job]
    assert len(every) == len(FIGURES["fig4"].cells(SMOKE)) + 1
    assert calls[1] == calls[2]
    assert read(tmp_path / "fig4.csv") == read(out / "fig4.csv")


def test_an_interruption_that_jax_swallows(tmp_path, monkeypatch):
    """It is raised again by the next piece of work; so is being told to end."""

    def swallow(cells, advance):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        advance(0.5)
        raise AssertionError

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(run_module, "run_cells", swallow)
    assert invoke("fig4", "--smoke", "--out", tmp_path).exit_code == 130
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_interruption_in_the_middle_of_a_computation(tmp_path):
    """The process ends, and says how to go on, however busy XLA is."""
    command = [sys.executable, "-m", "jpc", "reproduce", "fig2", "--smoke", "--out", tmp_path]
    env = dict(os.environ, JAX_ENABLE_COMPILATION_CACHE="0")  # Or it may soon be done.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    assert process.stdout is not None
    assert "networks to train, about" in process.stdout.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "the same command goes on" in errors
    assert process.returncode == 130


def test_minutes_are_those_of_all_figures(tmp_path, monkeypatch):
    given = []

    def reproduce(name, size, out, *, minutes, **_):
        given.append(minutes)
        raise FileNotFoundError(name)

    monkeypatch.setattr("jpc.experiments.reproduce", reproduce)
    clock = itertools.count(0.0, 60.0)
    monkeypatch.setattr("jpc.cli.studies.time.monotonic", lambda: next(clock))
    invoke("all", "--smoke", "--minutes", 3, "--out", tmp_path)
    assert given[:4] == [2.0, 1.0, 0.0, -1.0]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fig8"], "'fig8' is no figure: there are fig1, fig1-gap, fig2"),
        (["fig1", "--smoke", "--full"], "--smoke and --full are two sizes"),
        (["fig1", "--minutes", "nan"], "--minutes is how long: got nan."),
        (["fig1", "--hidden", 7], "it has cifar10, fashion-mnist, mnist, and 3 hidden layers"),
        (["fig2", "--full", "--dataset", "cifar10"], "it has mnist, and 10 hidden layers"),
    ],
)
def test_wrong_use(args, message):
    result = invoke(*args)
    assert result.exit_code == 2
    assert message in result.output


def test_wrong_names():
    with pytest.raises(ValueError, match="Unknown figure 'fig9': choose from 'fig1', 'fig1-gap'"):
        reproduce("fig9")
    with pytest.raises(ValueError, match="Unknown size 'tiny': choose from 'smoke', 'default'"):
        reproduce("fig1", "tiny")


def test_list():
    output = invoke("list").output
    assert all(name in output and figure.title in output for name, figure in FIGURES.items())


@pytest.fixture
def pretended(monkeypatch):
    """Cells get made-up numbers, at once."""

    def run(cells, advance):
        row = dict(step=9, ms=2.0, accuracy=50.0, evaluations=3.0, method="m", setting="s")
        row |= dict(excess=0.5, energy=2.0, energy_of_flow=1.5, theory=1.0, error_of_theory=0.0)
        row |= dict(gradient_norm=0.0, gradient_error=0.1)
        return [[dict(row, step=0), row] for _ in cells]

    monkeypatch.setattr(run_module, "run_cells", run)
    picture = lambda kind, found, path: f"![{path.name}]({path.name}.png)"
    monkeypatch.setattr("jpc.experiments._report._picture", picture)


def test_what_is_not_there_is_said(tmp_path, pretended, monkeypatch):
    """At the default size other data sets are run; without any, the digits."""
    here = {"mnist", "digits"}
    monkeypatch.setattr("jpc.data.where", lambda name: "here" if name in here else None)
    result = invoke("fig1", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert {row["dataset"] for row in read(tmp_path / "fig1.csv")} == {"mnist"}
    assert "cifar10 is not on this machine: jpc data fetch cifar10." in result.output
    assert "- cifar10, H = 3, heun\n" in result.output
    here.remove("mnist")
    result = invoke("fig1", "--out", tmp_path / "digits")
    assert result.exit_code == 0, result.output
    assert "mnist is not on this machine: jpc data fetch mnist." in result.output
    assert "- mnist, H = 3, euler\n" in result.output
    assert {row["dataset"] for row in read(tmp_path / "digits" / "fig1.csv")} == {"digits"}
    assert invoke("fig1", "--out", tmp_path / "digits", "--draw").exit_code == 0
    result = invoke("fig1", "--dataset", "mnist", "--out", tmp_path / "none")
    assert "mnist is not on this machine: jpc data fetch mnist." in result.output


@pytest.mark.slow
def test_what_cannot_be_had_does_not_stop_the_rest(tmp_path, pretended, monkeypatch):
    def fetch(name, progress):
        raise FileNotFoundError(f"no {name}")

    monkeypatch.setattr("jpc.data.where", lambda name: None if name == "cifar10" else "here")
    monkeypatch.setattr("jpc.data.fetch", fetch)
    result = invoke("all", "--full", "--out", tmp_path)
    assert result.exit_code == 1
    assert "Nothing of fig6 --full was run" in result.output
    assert {path.stem for path in tmp_path.glob("*.md")} == FIGURES.keys() - {"fig6"}
    assert {row["dataset"] for row in read(tmp_path / "fig1.csv")} == {"mnist", "fashion-mnist"}


def test_times_of_another_machine_are_taken_again(tmp_path, pretended, monkeypatch):
    run = lambda *args: invoke("fig1", "--smoke", "--out", tmp_path, *args)
    run()
    lines = lambda: (tmp_path / "cells.jsonl").read_text().splitlines()
    once = len(lines())
    run()
    assert len(lines()) == once
    there = run_module.where() | {"device": "elsewhere"}
    monkeypatch.setattr(run_module, "where", lambda: there)
    run("--draw")
    assert len(lines()) == once
    run()
    assert len(lines()) == 2 * once
    assert {row["device"] for row in read(tmp_path / "fig1.csv")} == {"elsewhere"}


def test_what_older_versions_did_not_measure_is_run_again(tmp_path, pretended):
    run = lambda *args: invoke("fig2", "--smoke", "--out", tmp_path, *args).output
    run()
    path = tmp_path / "cells.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines).replace('"energy_of_flow": 1.5, ', ""))
    assert "| digits | 5 | 2 | 2 | not run | not run |" in run("--draw")
    assert "| digits | 5 | 2 | 2 | 1.5 | 1.5 |" in run()
    assert len(path.read_text().splitlines()) == 2 * len(lines)


def test_some_of_the_seeds(tmp_path, pretended):
    invoke("fig2", "--smoke", "--out", tmp_path)
    path = tmp_path / "cells.jsonl"
    path.write_text(path.read_text().split("\n")[0])
    output = invoke("fig2", "--smoke", "--draw", "--out", tmp_path).output
    assert "\n- digits, H = 2, heun: T = 5, dt = 0.05 (seeds 1); T = 50, dt = 0.05\n" in output


def test_a_place_that_cannot_be_is_said_first(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "run_cells", None)
    (tmp_path / "file").touch()
    result = invoke("fig1", "--smoke", "--out", tmp_path / "file")
    assert result.exit_code == 1
    assert "file is a file: out must be a folder." in result.output


def test_part_of_a_figure(tmp_path, pretended, monkeypatch):
    monkeypatch.setattr("jpc.data.where", lambda name: "here")
    part = ("--dataset", "mnist", "--hidden", 3, "--hidden", 10)
    result = invoke("fig1", "--full", "--out", tmp_path, *part)
    assert result.exit_code == 0, result.output
    found = {(row["dataset"], row["hidden"]) for row in read(tmp_path / "fig1.csv")}
    assert found == {("mnist", "3"), ("mnist", "10")}
    assert "- mnist, H = 5, heun\n" in result.output
    assert invoke("fig1", "--full", "--out", tmp_path / "late", "--minutes", 0).exit_code == 1
    assert invoke("fig1", "--dataset", "mnits", "--out", tmp_path).exit_code == 2


def test_nothing_is_overwritten_with_nothing(tmp_path, pretended):
    invoke("fig1", "--smoke", "--out", tmp_path)
    before = (tmp_path / "fig1.csv").read_bytes()
    result = invoke("fig1", "--full", "--draw", "--out", tmp_path)
    assert result.exit_code == 1
    assert "Nothing of fig1 --full was run in" in result.output
    assert (tmp_path / "fig1.csv").read_bytes() == before


# --- what is declared ---


def test_the_full_size_is_that_of_the_paper():
    every = {name: figure.cells(FULL) for name, figure in FIGURES.items()}
    assert every["fig1"] == every["fig3"]
    assert len(every["fig1"]) == 3 * 3 * 2 * 3
    assert [len(every[name]) for name in ("fig4", "fig5", "fig6")] == [3 * 2 * 7 * 3 * 3] * 3
    for cell in itertools.chain(*every.values()):
        assert (cell.width, cell.batch, cell.learning_rate, cell.steps) == (300, 64, 1e-3, None)
    for cell in every["fig2"] + every["fig7"]:
        assert (cell.hidden, cell.act) == (10, "linear")
    # From the captions of figures 4 to 6.
    chosen = {(c.dataset, c.hidden, c.solver): (c.t1, c.dt) for c in every["fig1"]}
    assert chosen["mnist", 3, "euler"] == (20, 0.5)
    assert chosen["mnist", 5, "heun"] == (50, 0.05)
    assert chosen["fashion-mnist", 3, "heun"] == (20, 0.1)
    assert chosen["fashion-mnist", 10, "euler"] == (200, 0.05)
    assert chosen["cifar10", 5, "euler"] == (200, 0.05)
    assert chosen["cifar10", 10, "heun"] == (500, 0.1)


def test_plan(monkeypatch):
    """One at a time, or those of equal shape and about equal length; the quick ones first."""
    cells = FIGURES["fig1"].cells(FULL)
    assert sorted(map(len, plan(cells))) == [1] * len(cells)
    monkeypatch.setattr(run_module, "accelerated", lambda: True)
    jobs = plan(cells)
    assert sorted(map(str, itertools.chain(*jobs))) == sorted(map(str, cells))
    longest = [max(cell.evaluations for cell in job) * (5 + job[0].hidden) for job in jobs]
    assert longest == sorted(longest)
    for job in jobs:
        assert len({(c.hidden, c.solver, c.dataset == "cifar10") for c in job}) == 1
        lengths = [cell.evaluations for cell in job]
        assert max(lengths) <= 4 * min(lengths)


# --- the store ---


def test_the_store_keeps_what_is_whole(tmp_path):
    path = tmp_path / "new" / "cells.jsonl"
    cells = [dataclasses.replace(CELL, seed=seed) for seed in range(3)]
    Store(path).add(cells[:2], [[dict(step=0, ms=1.0)], [dict(step=0, ms=2.0)]], HERE)
    other = dict(cell=dict(dataclasses.asdict(cells[2]), more=1), rows=[], where=HERE)
    with path.open("a") as file:
        file.write(json.dumps(other) + "\n" + json.dumps(other)[:40])
    with pytest.warns(UserWarning, match="no results: 3, 4"):
        store = Store(path)
    assert list(store.rows(cells)) == cells[:2]
    store.add(cells[2:], [[dict(step=0, ms=3.0)]], HERE)
    with pytest.warns(UserWarning, match="no results: 3, 4"):
        again = Store(path)
    found = again.rows(cells)
    assert [row["ms"] for mine in found.values() for row in mine] == [1.0, 2.0, 3.0]
    assert all(row.items() >= HERE.items() for mine in found.values() for row in mine)


@pytest.mark.parametrize(
    "wrong",
    [
        dict(rows=[]),
        dict(rows=["step"]),
        dict(rows=[dict(step="x", ms=1.0)]),
        dict(rows=[dict(step=0, ms=None)]),
        dict(cell=dataclasses.asdict(CELL) | dict(seed=[1])),
        dict(where=dict(device="cpu")),
    ],
)
def test_a_line_that_is_no_result_is_left_alone(tmp_path, wrong):
    path = tmp_path / "cells.jsonl"
    Store(path).add([CELL], [[dict(step=0, ms=1.0)]], HERE)
    line = json.loads(path.read_text()) | wrong
    path.write_text(path.read_text() + json.dumps(line) + "\n")
    with pytest.warns(UserWarning, match="no results: 2"):
        assert [row["ms"] for row in Store(path).rows([CELL])[CELL]] == [1.0]


@pytest.mark.parametrize(
    ("measure", "other", "apart"),
    [
        ("time", {"device": "gpu"}, True),
        ("accuracy", {"device": "gpu"}, False),
        ("accuracy", {"products": "float64"}, True),
    ],
)
def test_numbers_of_several_places_are_not_put_together(tmp_path, measure, other, apart):
    """The seeds of a setting are of one device, if they are times, and of one precision."""
    store, there = Store(tmp_path / "cells.jsonl"), HERE | other
    cells = [dataclasses.replace(CELL, measure=measure, seed=seed) for seed in range(3)]
    row = lambda number: [dict(step=0, ms=number, accuracy=number, evaluations=number)]
    found = lambda: [rows[0]["accuracy"] for rows in store.rows(cells).values()]
    store.add(cells, [row(1.0)] * 3, there)
    store.add(cells[:2], [row(2.0)] * 2, HERE)
    assert found() == ([1.0, 1.0, 1.0] if apart else [2.0, 2.0, 1.0])
    assert [store.is_done(cell, HERE) for cell in cells] == [True, True, not apart]
    assert all(store.is_done(cell, there) for cell in cells)  # Nothing is forgotten.
    store.add(cells[2:], [row(2.0)], HERE)
    assert found() == [2.0] * 3


# --- the numbers ---


@pytest.mark.parametrize("solver", ["euler", slowly("heun"), slowly("equilibrium")])
def test_training_is_the_library_step(solver):
    """Four steps, against `make_pc_step` in a loop."""
    cell = dataclasses.replace(CELL, solver=solver)
    data = stack_data(("digits",))
    ensemble, members = assemble([cell], data, ("digits",))
    (member,) = (jax.tree.map(lambda x: x[0], members),)
    model, optim = ensemble.layers(member), optax.adam(1e-3)
    state = optim.init((eqx.filter(model, eqx.is_array), None))
    trained = ensemble.train(data, members, jnp.asarray(0), jnp.asarray(4))
    for rows in member.order:
        x, y = data.images[0, rows], data.labels[0, rows]
        flow = paper_flow(solver, 2.0, 0.5)
        result = jpc.make_pc_step(model, optim, state, y, x, inference=flow)
        model, state = result["model"], result["opt_state"]
    found = eqx.filter(ensemble.layers(jax.tree.map(lambda x: x[0], trained)), eqx.is_array)
    assert_close(
        jax.tree.leaves(found), jax.tree.leaves(eqx.filter(model, eqx.is_array)), rtol=1e-6
    )


@pytest.mark.slow
def test_networks_trained_at_once_are_those_trained_alone():
    cells = [
        dataclasses.replace(CELL, solver="heun", t1=t1, seed=seed)
        for t1, seed in itertools.product((2.0, 20.0), range(2))
    ]
    at_once = run_cells(cells, quietly)
    alone = [run_cells([cell], quietly)[0] for cell in cells]
    assert at_once == alone
    assert len({row[-1]["accuracy"] for row in alone}) > 1


def test_all_of_the_work_is_told(monkeypatch):
    """Comparing methods is most of it, where they are compared."""
    monkeypatch.setattr(train_module, "compare_methods", lambda *problem: [])
    compared = dict(measure="gap", solver="equilibrium", points=1)
    for options, told in [({}, [3 / 5, 2 / 5]), (compared, [0.4, 0.2, 0.4])]:
        parts = []
        run_cells([dataclasses.replace(CELL, **dict(steps=5, points=2) | options)], parts.append)
        assert_close([part for part in parts if part], told)


def test_times_are_taken_and_accuracies_kept(out):
    rows = read(out / "fig1.csv")
    assert [float(row["ms"]) > 0 for row in rows] == [True] * len(rows)
    assert {row["step"] for row in rows} == {"0", "3", "6"}
    assert all(0 <= float(row["accuracy"]) <= 100 for row in rows)


@pytest.mark.parametrize(
    ("times", "median"), [((5.0, 1.0, 2.0), 2.0), ((300.0, 290.0), 290.0), ((2000.0, 5.0), 5.0)]
)
def test_a_time_is_the_median_of_three_unless_it_is_long(monkeypatch, times, median):
    taken = iter(times)
    monkeypatch.setattr(train_module, "timed", lambda call: (next(taken), call()))
    data = stack_data(("digits",))
    ensemble, members = assemble([CELL], data, ("digits",))
    member = jax.tree.map(lambda x: x[0], members)
    ms, evaluations = train_module.time_inference(ensemble, data, member, jnp.asarray(1))
    assert (ms, int(evaluations), list(taken)) == (median, 5, [])


@pytest.mark.slow
def test_the_closed_form_is_the_energy_at_convergence(make):
    """And a flow that has not converged is above it, less so the longer it goes on."""
    rows = read(make("fig2") / "fig2.csv")
    for name in ("energy", "energy_of_flow"):
        assert all(float(row[name]) > float(row["theory"]) for row in rows)
    assert max(float(row["gradient_norm"]) for row in rows if row["gradient_norm"]) < 1e-12
    errors = [abs(float(row["error_of_theory"])) for row in rows if row["error_of_theory"]]
    assert len(errors) == len(FIGURES["fig2"].cells(SMOKE))
    assert max(errors) < 1e-9
    first = {
        row["t1"]: float(row["energy"]) for row in rows if (row["step"], row["seed"]) == ("0", "0")
    }
    assert first["5"] > first["50"]


@pytest.mark.slow
def test_more_time_is_closer_to_equilibrium(make):
    found = read(make("fig1-gap") / "fig1-gap.csv")
    rows = [dict(row, excess=float(row["excess"])) for row in found]
    for (_, _, method), found in tables.group(rows, "seed", "step", "method").items():
        excesses = [row["excess"] for row in found]
        assert excesses[-1] < excesses[0]
        assert all(b < 1.01 * a + 1e-6 for a, b in itertools.pairwise(excesses)), method
    exact = [
        r["excess"] for r in rows if (r["method"], r["setting"]) == ("Equilibrium", "3 chords")
    ]
    assert max(exact) < 1e-3


# --- tables ---


def test_tables_say_what_was_not_run():
    times = [
        dict(dataset="mnist", hidden=3, solver="heun", t1=20, dt=0.5, seed=seed, step=step, ms=ms,
             accuracy=90.0 + seed, evaluations=7.0, device="cpu")
        for seed, step, ms in [(0, 0, 1.0), (0, 9, 3.0), (1, 0, 4.0), (1, 9, 4.0)]
    ]  # fmt: skip
    line = tables.times(times)[1]
    assert line == ["mnist", "3", "", "not run", "", "20, 0.5", "3.00 ± 1.00", "7", ""]
    both = times + [dict(row, solver="euler", ms=2 * row["ms"]) for row in times]
    assert tables.times(both)[1][-4:] == ["20, 0.5", "3.00 ± 1.00", "7", "2.00"]
    both = [dict(row, accuracy=row["accuracy"] - row["step"]) for row in both]
    assert tables.accuracies(both)[1][3:5] == ["90.50 ± 0.50", "81.50 ± 0.50"]


def test_the_best_of_a_grid_is_the_highest_mean_at_any_moment():
    row = dict(dataset="mnist", hidden=3, solver="heun", dt=0.5, step=0)
    seeds = {10: [(80, 0), (90, 1)], 50: [(85.2, 0), (85.0, 1)], 5: [(84.7, 0), (84.7, 1)]}
    rows = [
        dict(row, t1=t1, accuracy=accuracy, seed=seed)
        for t1, found in seeds.items()
        for accuracy, seed in found
    ]
    rows += [dict(r, step=9, accuracy=0.0) for r in rows]
    rows += [dict(row, t1=20, accuracy=99, seed=0)]  # The other seed was not run.
    head, line = tables.grid(rows)
    assert head[3:] == ["dt", "T = 5", "T = 10", "T = 20", "T = 50"]
    assert line == ["mnist", "3", "heun", "0.5", "84.70", "85.00", "not run", "**85.10**"]


def test_the_cheapest_setting_is_close_enough_for_every_seed():
    row = dict(dataset="mnist", hidden=3, step=9, method="Heun")
    rows = [
        dict(row, setting=setting, seed=seed, ms=ms, evaluations=10 * ms, excess=excess)
        for setting, ms, excesses in [("short", 1.0, (0.05, 0.2)), ("long", 2.0, (0.05, 0.005))]
        for seed, excess in enumerate(excesses)
    ]
    assert tables.gap(rows)[1][4:] == ["2.00", "20", "-", "-", "-", "-"]


def test_means_and_deviations_over_seeds():
    rows = [dict(step=s, seed=k, ms=float(s + 2 * k)) for s in (0, 5) for k in range(2)]
    steps, mean, deviation = tables.over_seeds(rows, "ms")
    np.testing.assert_array_equal(steps, [0, 5])
    np.testing.assert_array_equal(mean, [1, 6])
    np.testing.assert_array_equal(deviation, [1, 1])
    more = [dict(step=3, seed=0, ms=9.0), *rows]
    np.testing.assert_array_equal(tables.over_seeds(more, "ms")[0], [0, 5])
