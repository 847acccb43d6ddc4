"""The `jpc` command, as a person would use it, on the digits that come with JPC."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import slowly
from jaxtyping import install_import_hook
from typer.testing import CliRunner

import jpc
from jpc._claim import was_killed

with install_import_hook("jpc.cli", "beartype.beartype"):
    from jpc.cli import (
        build,
        check,
        compare,
        config as config_module,
        plot,
        text,
        train as train_module,
    )
    from jpc.cli.app import app
    from jpc.cli.evaluate import evaluate
    from jpc.cli.folder import RunFolder, choose_folder
    from jpc.cli.options import read_config
    from jpc.cli.report import Report
    from jpc.cli.svg import Line, chart, linear_axis, log_axis
    from jpc.cli.toml import as_tables, write_tables
    from jpc.cli.train import prepare, restore

from test_docs import run as run_page

TASKS = tuple(task for task in config_module.TASKS if task != "regression")  # Digits are classes.
TINY = ["--depth", "2", "--width", "8", "--batch-size", "256", "--inference", "descent"]
TINY += ["--steps", "3"]
EPOCHS = dict.fromkeys(TASKS, 2) | dict(discriminative=12)
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(jpc.__file__).parents[1])}


@pytest.fixture(autouse=True, scope="module")
def strict_jax_afterwards():
    yield
    jax.config.update("jax_enable_x64", True)


@pytest.fixture(autouse=True)
def in_time(monkeypatch):
    """However busy the machine is, nothing is said to take long."""
    monkeypatch.setattr(text, "_WHILE", 600.0)


def invoke(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def start_process(*args, cache):
    """The command as a process of its own. What one of them compiled others need not."""
    command = [sys.executable, "-m", "jpc", *map(str, args)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    cache = {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    return subprocess.Popen(command, env=ENVIRONMENT | cache, **pipes)


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Trains a small network for a task, once."""

    @functools.cache
    def train(task):
        out, epochs = tmp_path_factory.mktemp("runs") / task, EPOCHS[task]
        more = ["--activity-decay", 0.01] if task == "unsupervised" else []
        args = ("--task", task, *TINY, *more, "--epochs", epochs, "--out", out)
        with pytest.MonkeyPatch.context() as patch:
            if task != "discriminative":  # Matplotlib takes its time, which once is enough for.
                patch.setattr(plot, "as_file", lambda figure, kind="png": b"\x89PNG")
            result = invoke("train", *args)
        assert result.exit_code == 0, result.output
        assert result.output.splitlines()[-1] == f"report: {out / 'report.html'}"
        assert len(re.findall(r"^epoch \d", result.output, re.MULTILINE)) == epochs
        return out

    return train


SELDOM = ("generative", "hybrid")


@pytest.fixture(params=[slowly(task) if task in SELDOM else task for task in TASKS])
def run(request, train):
    return RunFolder(train(request.param))


@pytest.fixture
def digits_run(train):
    return train("discriminative")


class TestConfig:
    CHOSEN = (
        {},
        {"data": {"task": "unsupervised"}, "network": {"latent": 3, "skips": True}},
        {"data": {"dataset": "cifar10"}, "network": {"kind": "vgg9", "bias": False}},
        {"inference": {"method": "euler", "dt": 1}, "optimiser": {"learning_rate": 1e-5}},
        {"energy": {"activity_decay": 0.5}, "inference": {"method": "tsit5", "max_t1": 2.5}},
    )

    @pytest.mark.parametrize("tables", CHOSEN)
    def test_is_the_same_after_a_file(self, tables):
        config = check.make_config(tables)
        assert check.make_config(tomllib.loads(write_tables(as_tables(config)))) == config

    def test_says_what_matters_and_only_that(self):
        tables = as_tables(check.make_config({"inference": {"method": "euler"}}))
        assert tables["inference"] == dict(method="euler", max_t1=20.0, dt=0.1, reduction="sum")
        assert "channels" not in tables["network"]
        assert tables["energy"]["output_precision"] == 1.0
        assert as_tables(check.make_config({}))["energy"]["output_precision"] == 0.1

    def test_steps_of_wide_networks_are_shorter(self):
        dt = lambda width: (
            check.make_config(
                {"network": {"width": width}, "inference": {"method": "descent"}}
            ).inference.dt
        )
        assert [dt(64), dt(256), dt(1024)] == [0.1, 0.1, 0.025]

    def test_command_line_wins_over_the_file(self, tmp_path):
        file = tmp_path / "options.toml"
        file.write_text("[network]\nwidth = 5\ndepth = 4\n")
        config = read_config(file, dict(width=7, inference="heun", rtol=0.1))
        assert (config.network.width, config.network.depth) == (7, 4)
        assert (config.inference.method, config.inference.rtol) == ("heun", 0.1)

    def test_file_is_read_strictly(self, tmp_path):
        texts = {
            "[network]\nwdith = 5": "Unknown key 'wdith' in \\[network\\]: .*width",
            "[net]\nwidth = 5": "Unknown table \\[net\\]: .*network",
            "width = 5": "Unknown table \\[width\\]",
            "network = 5": "network is a table",
            "[network]\nwidth = 5.5": "--width must be a whole number, got 5.5",
            "[network]\nbias = 1": "--bias must be true or false, got 1",
            "[data]\ndataset = 3": "--dataset must be a name, got 3",
            "[training]\nepochs = true": "--epochs must be a whole number, got True",
            "[optimiser]\nlearning_rate = nan": "--learning-rate must be a number above 0",
            "[network": "is not TOML",
        }
        for text, message in texts.items():
            file = tmp_path / "options.toml"
            file.write_text(text)
            result = invoke("train", file)
            assert result.exit_code == 2
            assert re.search(message, result.stderr), result.stderr


INVALID = {
    "--dataset x": "--dataset is one of digits, mnist, fashion-mnist, cifar10, or a path, not 'x'",
    "--dataset x.csv": "x.csv: there is no such file",
    "--target x": "--target is for data of your own",
    "--task regression": "--task regression is for data of your own; digits has classes",
    "--task x": "--task is one of discriminative, generative, unsupervised, hybrid",
    "--network x": "--network is one of mlp, vgg5",
    "--activation x": "--activation is one of linear, tanh",
    "--inference x": "--inference is one of equilibrium, heun",
    "--depth 1": "--depth must be a whole number of at least 2, got 1",
    "--depth x": "--depth must be a whole number, got 'x'",
    "--epochs 0": "--epochs must be a whole number of at least 1",
    "--learning-rate -1": "--learning-rate must be a number above 0, got -1",
    "--dt 0.1": "--dt .step size.* is for --inference euler, descent; .*--rtol, --chords, --steps",
    "--inference heun --chords 3": "--chords .* is for --inference equilibrium",
    "--network vgg7 --depth 3": "--depth .* is for --network mlp",
    "--latent 3": "--latent .*unsupervised",
    "--task generative --network vgg7": "--network vgg7 is for --task discriminative",
    "--task generative --loss ce": "--loss ce is for labels",
    "--task hybrid --skips": "hybrid takes neither --skips",
    "--activity-decay 1": "--activity-decay does not go with --inference equilibrium",
    "--chords 0": "leaves nothing to do",
    "--task generative --steps 0": "--steps 0 leaves equilibrium without",
    "--inference descent --steps 0": "at least one",
    "--warmup 20": "--warmup 20 leaves nothing of --epochs 20",
    "--batch-size 3 --devices 2": "cannot be shared out evenly",
    "--devices 64": "--devices 64, but JAX sees",
    "--batch-size 2000": "--batch-size 2000, but digits has 1437 examples",
    "--network vgg5": "Images of 8 x 8 are too small for 'vgg5'",
    "--resume x --out y": "--resume RUN goes without",
    "--resume x": "x is not the folder of a run",
    "x.toml": "x.toml cannot be read: No such file",
}


@pytest.mark.parametrize("args", INVALID)
def test_wrong_use_is_answered_before_anything_is_written(args, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("train", *args.split())
    assert result.exit_code == 2
    assert re.search(INVALID[args], result.stderr), result.stderr
    assert not list(tmp_path.iterdir())


class TestHelp:
    def test_is_complete(self):
        text = CliRunner(env=dict(COLUMNS="80")).invoke(app, ["train", "--help-all"]).output
        assert all(entry.flag in text for entry in config_module.ENTRIES)
        assert max(map(len, text.splitlines())) <= 80

    def test_names_every_command(self):
        text = invoke("--help").output
        assert all(name in text for name in ("train", "eval", "compare", "data", "doctor"))


class TestRunFolder:
    def test_has_all_files(self, run):
        task = run.read_config().data.task
        files = {"config.toml", "metrics.jsonl", "report.html", "accuracy.png", "energies.png"}
        files |= {"checkpoints", "figures"} | (
            {"samples.png"} if task != "discriminative" else set()
        )
        assert {path.name for path in run.path.iterdir()} == files

    def test_metrics_are_those_of_the_state(self, run):
        """What was noted in the last epoch, from the checkpoint of it."""
        task = prepare(run.read_config(), progress=False)
        state = restore(task, run)
        *_, last = run.read_metrics()
        assert evaluate(task, state) == {k: v for k, v in last.items() if k.startswith("test_")}
        model = state["generator" if "generator" in state else "model"]
        norms = jpc.compute_param_norms((model, None))[0]
        np.testing.assert_allclose(last["diagnosis"]["weight_norms"], norms, rtol=1e-5)

    def test_energies_are_those_of_inference(self, run):
        """The end of what was recorded is where the method ends, and that is what was noted."""
        for record in run.read_metrics():
            diagnosis = record["diagnosis"]
            course = diagnosis["course"]
            assert course["times"] == [0.0, 1.0, 2.0, 3.0]
            np.testing.assert_allclose(course["energies"][-1], diagnosis["energies"], rtol=1e-5)

    def test_certificate_is_that_of_the_energies(self, run):
        if run.read_config().energy.activity_decay > 0:  # Not a chain: nothing to compare with.
            assert run.read_metrics()[-1]["diagnosis"]["certificate"] == {}
            return
        for record in run.read_metrics():
            gap = record["diagnosis"]["certificate"]
            energy = np.sum(record["diagnosis"]["energies"])
            np.testing.assert_allclose(gap["energy"], energy, rtol=1e-5)
            excess = gap["energy"] - gap["equilibrium_energy"]
            np.testing.assert_allclose(gap["excess"], excess, atol=1e-5)
            assert gap["excess"] > 0

    def test_report_stands_alone(self, run):
        text = run.report.read_text()
        page = ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
        titles = [title.text for title in page.iter("h2")]
        task = run.path.name
        made = ["Samples", "Reconstructions"]
        assert [title for title in titles if title != "Worst mistakes"] == [
            "Learning curves",
            *(["Classes"] if task != "unsupervised" else []),
            "Energies of the layers",
            "Distance from equilibrium",
            "Between backpropagation and equilibrium",
            "Weights and gradients",
            *(["Predictions"] if task == "discriminative" else made),
            "Configuration",
            "Machine",
        ]
        assert "://" not in text
        assert "<script" not in text
        assert text.count('pictures pairs"') == ("Reconstructions" in titles)
        assert 'http-equiv="refresh"' not in text  # It is finished.
        sources = [image.get("src") for image in page.iter("img")]
        assert len(sources) >= 10
        assert all(source.startswith("data:image/png;base64,") for source in sources)
        drawn = {ET.parse(path).getroot().tag for path in run.figures.glob("*.svg")}
        assert drawn == {"{http://www.w3.org/2000/svg}svg"}
        assert len(list(run.figures.iterdir())) == len(list(page.iter("figure")))

    def test_report_counts_the_mistakes(self, digits_run):
        """As many as the accuracy says, off the diagonal of the matrix."""
        text = (digits_run / "report.html").read_text()
        accuracy = RunFolder(digits_run).read_metrics()[-1]["test_acc"]
        assert f"{round(360 * (1 - accuracy / 100))} mistakes in 360 test examples" in text

    def test_is_an_object_in_python(self, digits_run):
        run, folder = jpc.load_run(digits_run), RunFolder(digits_run)
        assert run.history == folder.read_metrics()
        assert run.config == folder.read_config()
        logits = jpc.init_activities_with_ffwd(run.model, run.data.test[0])[-1]
        accuracy = 100 * np.mean(np.argmax(logits, axis=1) == run.data.test[1])
        np.testing.assert_allclose(accuracy, run.history[-1]["test_acc"], rtol=1e-5)
        assert run.skip_model is None
        assert "digits, discriminative, mlp 2 x 8, descent" in repr(run)
        assert "epoch 12 of 12, test accuracy" in repr(run)

    def test_is_read_as_the_documentation_says(self, digits_run, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Path("runs").mkdir()
        Path("runs/digits-1").symlink_to(digits_run)
        found = run_page("cli.md")["run"]
        assert len(found.model) == found.config.network.depth

    def test_eval_repeats_the_last_metrics(self, digits_run):
        result = invoke("eval", digits_run, "--json")
        last = RunFolder(digits_run).read_metrics()[-1]
        expected = {name: last[name] for name in ("test_acc", "test_loss")}
        assert json.loads(result.stdout) == dict(run=str(digits_run), **expected)

    def test_is_not_destroyed(self, digits_run):
        before = {path: path.read_bytes() for path in digits_run.glob("*.*")}
        result = invoke("train", *TINY, "--out", digits_run)
        assert result.exit_code == 2
        assert f"jpc train --resume {digits_run}" in result.stderr
        assert "--overwrite" in result.stderr
        assert before == {path: path.read_bytes() for path in digits_run.glob("*.*")}

    def test_overwriting_spares_what_is_not_of_a_run(self, tmp_path):
        folder = RunFolder(tmp_path / "run")
        folder.begin(check.make_config({}))
        folder.append(dict(epoch=1))
        (folder.path / "notes.txt").write_text("mine")
        assert choose_folder(folder.path, "digits", overwrite=True).path == folder.path
        folder.begin(check.make_config({"data": {"task": "hybrid"}}))
        assert {path.name for path in folder.path.iterdir()} == {"config.toml", "notes.txt"}
        assert folder.read_config().data.task == "hybrid"
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "notes.txt").write_text("mine")
        with pytest.raises(config_module.ConfigError, match="not of a run"):
            choose_folder(tmp_path / "other", "digits", overwrite=True)

    def test_gets_the_next_free_number(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert choose_folder(None, "mnist", overwrite=False).path == Path("runs/mnist-1")
        Path("runs/mnist-1").mkdir(parents=True)
        assert choose_folder(None, "mnist", overwrite=False).path == Path("runs/mnist-2")

    def test_metrics_have_no_doubles_and_no_halves(self, tmp_path):
        folder = RunFolder(tmp_path)
        for epoch in (1, 2, 3):
            folder.append(dict(epoch=epoch, first=True, loss=float("nan")))
        with folder.metrics.open("a") as file:
            file.write('{"epoch": 4, "fir')  # Killed here, after a checkpoint of epoch 1.
        assert [record["epoch"] for record in folder.read_metrics()] == [1, 2, 3]
        folder.append(dict(epoch=2, first=False, loss=0.5))
        lines = folder.metrics.read_text().splitlines()
        assert [json.loads(line)["first"] for line in lines] == [True, False]
        assert '"loss": null' in lines[0]


class TestInterruption:
    """Two kills, then Ctrl-C: a run goes on as if nothing had been."""

    def wait_for(self, process, folder, epochs):
        while not (folder.config.exists() and len(folder.read_metrics()) >= epochs):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)

    def kill_twice(self, start, config, folder):
        """Before the first epoch, and after the second."""
        process = start("train", config, "--out", folder.path)
        self.wait_for(process, folder, 0)
        process.kill()
        process.communicate()
        assert not folder.read_metrics()
        assert was_killed(folder.path)

        process = start("train", "--resume", folder.path)
        self.wait_for(process, folder, 2)
        process.kill()
        process.communicate()
        assert 2 <= len(folder.read_metrics()) < 10

    def test_changes_nothing(self, digits_run, tmp_path, monkeypatch):
        """Against the run whose configuration it repeats: stopped after its first epoch."""
        whole, folder = RunFolder(digits_run), RunFolder(tmp_path / "run")
        monkeypatch.setattr(plot, "as_file", lambda figure, kind="png": b"\x89PNG")

        def append(self, record, original=RunFolder.append):
            original(self, record)
            signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(RunFolder, "append", append)
        stopped = invoke("train", whole.config, "--out", folder.path, "--quiet")
        assert (stopped.exit_code, stopped.stdout) == (130, "")
        self.check(folder, whole, stopped.stderr, done=0)

    def check(self, folder, whole, errors, done):
        assert f"saved; resume with: jpc train --resume {folder.path}" in errors
        assert "Interrupted" in folder.report.read_text()
        records = [[self.timeless(r) for r in f.read_metrics()] for f in (folder, whole)]
        assert len(records[0]) > done
        assert records[0] == records[1][: len(records[0])]
        assert folder.config.read_bytes() == whole.config.read_bytes()

    @pytest.mark.slow
    @pytest.mark.parametrize("killed", [False, True])
    def test_changes_nothing_in_a_process(self, digits_run, tmp_path, killed):
        whole, folder = RunFolder(digits_run), RunFolder(tmp_path / "run")
        start = functools.partial(start_process, cache=tmp_path / "cache")
        given = [whole.config, "--out", folder.path]
        if killed:
            self.kill_twice(start, whole.config, folder)
            given = ["--resume", folder.path]
        done = len(folder.read_metrics()) if killed else 0
        process = start("train", *given, "--quiet")
        self.wait_for(process, folder, done + 1)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
        assert (process.returncode, output) == (130, "")
        self.check(folder, whole, errors, done)

    def test_nothing_is_left_to_do(self, digits_run, monkeypatch):
        """A run that is finished stays as it is."""
        shown = []
        monkeypatch.setattr("webbrowser.open", lambda address: shown.append(address) or True)
        before = RunFolder(digits_run).metrics.read_bytes()
        result = invoke("train", "--resume", digits_run, "--json", "--open")
        assert shown == [(digits_run / "report.html").as_uri()]
        assert result.exit_code == 0
        assert json.loads(result.stdout)["epoch"] == 12
        assert RunFolder(digits_run).metrics.read_bytes() == before

    def timeless(self, record):
        return {name: value for name, value in record.items() if "seconds" not in name}

    def test_a_run_is_resumed_as_it_was_begun(self, digits_run):
        for args in (["--width", 9], ["--epochs", 9]):  # The cosine ends with the last epoch.
            result = invoke("train", "--resume", digits_run, *args)
            assert result.exit_code == 2
            assert "resumed as it was begun" in result.stderr

    def test_another_run_is_refused(self, digits_run, tmp_path):
        """In a line, and gone on with if that is what is wanted."""
        run = tmp_path / "run"
        shutil.copytree(digits_run, run)
        config = (run / "config.toml").read_text()
        (run / "config.toml").write_text(config.replace('"tanh"', '"relu"'))
        said = "is of another run: config['network']['activation']: 'tanh' then, 'relu' now. "
        for args, remedy in (
            (["train", "--resume", run], f"--resume {run} --anyway.\n"),
            (["eval", run], "config.toml changed? Change it back.\n"),
        ):
            result = invoke(*args)
            assert result.exit_code == 2 and result.stderr.count("\n") == 1
            assert said in result.stderr and result.stderr.endswith(remedy)
        assert invoke("train", "--resume", run, "--anyway", "--quiet").exit_code == 0
        assert "goes with --resume" in invoke("train", "--anyway").stderr


class TestOtherCommands:
    def test_compare(self, digits_run, tmp_path):
        other = RunFolder(tmp_path / "other")
        other.begin(check.make_config({"network": {"width": 9}}))
        record = RunFolder(digits_run).read_metrics()[-1]
        other.append(dict(record, test_acc=12.5))
        plot = tmp_path / "plot.png"
        table = invoke("compare", digits_run, other.path, "--plot", plot).stdout
        assert re.search(r"^network.width +8 +9 *$", table, re.MULTILINE)
        assert plot.read_bytes().startswith(b"\x89PNG")
        rows = json.loads(invoke("compare", digits_run, other.path, "--json").stdout)
        assert [row["test_acc"] for row in rows] == [record["test_acc"], 12.5]
        assert "network.depth" in rows[0]  # 2 and the default.
        assert "training.seed" not in rows[0]

    def test_table_is_as_narrow_as_can_be(self):
        rows = [dict(run="a", x=1.0), dict(run="b", x=2.0), dict(run="c", x=None)]
        lines = compare.Comparison(rows).table().splitlines()
        assert [line.split() for line in lines] == [
            ["run", "x"],
            ["a", "1"],
            ["b", "2"],
            ["c", "-"],
        ]

    def test_info_and_data(self, monkeypatch, tmp_path):
        for name in ("JPC_DATA_DIR", "XDG_CACHE_HOME"):
            monkeypatch.setenv(name, str(tmp_path))
        here = str(jpc.data.where("digits"))
        found = json.loads(invoke("info", "--json").stdout)
        assert found["jpc"] == jpc.__version__
        assert f"jax {jax.__version__}" in found["packages"]
        assert found["data"] == dict.fromkeys(jpc.data.NAMES) | dict(digits=here)
        assert "mnist " in invoke("info").stdout
        listed = invoke("data", "list").stdout.splitlines()
        assert [line.split(maxsplit=1) for line in listed[:2]] == [
            ["digits", here],
            ["mnist", "not on this machine"],
        ]
        assert invoke("data", "where", "digits").stdout.strip() == here
        assert invoke("data", "fetch", "digits").stdout.strip() == here
        assert invoke("data", "where", "mnist").exit_code == 1
        assert invoke("data", "where", "x").exit_code == 2

    @pytest.mark.parametrize("before", ["\n", "Above is the stack.\nx.EquinoxRuntimeError: "])
    def test_failures_are_said(self, before, monkeypatch, tmp_path):
        def fail(config, *, progress):
            raise RuntimeError(before + "It diverged.\nMore about it.")

        monkeypatch.setattr(train_module, "prepare", fail)
        result = invoke("train", "--out", tmp_path / "run")
        assert result.exit_code == 1
        assert result.stderr == "jpc: It diverged.\nMore about it.\n(--debug shows where.)\n"
        result = invoke("train", "--out", tmp_path / "run", "--debug")
        assert isinstance(result.exception, RuntimeError)

    def test_nothing_to_look_at_is_said(self, tmp_path):
        RunFolder(tmp_path).begin(check.make_config({}))
        for command in ("eval", "compare"):
            result = invoke(command, tmp_path)
            assert result.exit_code == 2
            assert "no epoch of it is done" in result.stderr


class TestPages:
    def test_running_report_loads_itself_again(self):
        """Before the first epoch is over, too."""
        page = Report(records=[], status="running", config=check.make_config({})).page()
        assert 'http-equiv="refresh"' in page
        assert "no epoch done yet" in page
        ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))

    def test_documented_file_is_a_configuration(self):
        text = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()
        (block,) = re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        config = check.make_config(tomllib.loads(block))
        assert (config.network.depth, config.inference.max_t1) == (5, 50.0)


class TestParts:
    @pytest.mark.parametrize("schedule", ["constant", "cosine"])
    def test_learning_rate(self, schedule):
        """Against the closed form: a line up, then a constant or half a cosine down."""
        given = dict(kind="sgd", learning_rate=2.0, schedule=schedule, warmup=1)
        optim = build.make_optimiser(config_module.Optimiser(**given), epochs=3, steps=4)
        grads, rates = jnp.ones(()), []
        state = optim.init(grads)
        for _ in range(12):
            update, state = optim.update(grads, state)
            rates.append(-float(update))
        rest = np.arange(8) / 8
        falling = 1 + np.cos(np.pi * rest) if schedule == "cosine" else 2 * np.ones(8)
        np.testing.assert_allclose(rates, [0.0, 0.5, 1.0, 1.5, *falling], atol=1e-6)

    def test_methods(self):
        make = lambda **given: build.make_inference(
            check.make_config(dict(inference=given)).inference
        )
        found = make(method="equilibrium", chords=2, steps=1, rtol=0.5)
        assert (found.chords, found.max_steps, found.rtol) == (2, 1, 0.5)
        flow = make(method="euler", max_t1=3, dt=0.5)
        assert (flow.t1, flow.dt0, type(flow.solver).__name__) == (3.0, 0.5, "Euler")
        assert make(method="tsit5", rtol=0.2).rtol == 0.2
        assert make(method="descent", steps=4).steps == 4

    def test_options_make_the_energy(self):
        given = dict(output_precision=0.5, stiffness=10.0, weight_decay=0.1, loss="mse")
        options = build.make_options(check.make_config(dict(energy=given)))
        expected = dict(loss_id="mse", output_energy_scaling=0.5, weight_decay=0.1)
        assert options == dict(expected, stiffness=10.0, param_type="sp")

    def test_optimisers_are_those_of_optax(self):
        weights = dict(w=jnp.array([1.0, -2.0]))
        given = config_module.Optimiser(kind="momentum", learning_rate=0.1, schedule="constant")
        ours, theirs = build.make_optimiser(given, 2, 3), optax.sgd(0.1, momentum=0.9)
        for optim in (ours, theirs):
            update, _ = optim.update(weights, optim.init(weights))
            np.testing.assert_allclose(update["w"], [-0.1, 0.2], rtol=1e-6)

    def test_ticks_are_round(self):
        assert linear_axis([0.0, 10.0]).ticks == [0, 2, 4, 6, 8, 10]
        assert linear_axis([1, 4], whole=True).ticks == [1, 2, 3, 4]
        np.testing.assert_allclose(linear_axis([93.2, 97.8]).ticks, [94, 95, 96, 97])
        assert log_axis([0.02, 30.0]).ticks == [0.01, 0.1, 1, 10, 100]

    def test_chart_draws_where_the_numbers_are(self):
        """A straight line stays one; on a logarithmic axis a power law becomes one."""
        for log, ys in ((False, [0.0, 5.0, 10.0]), (True, [1.0, 10.0, 100.0])):
            (drawn,) = chart("A & B", [Line("x", [1, 2, 3], ys)], "epoch", "y", log=log)
            page = ET.fromstring(drawn.figure())
            (line,) = page.iter("polyline")
            (x0, y0), (x1, y1), (x2, y2) = (
                map(float, point.split(",")) for point in line.get("points").split()
            )
            np.testing.assert_allclose([2 * x1, 2 * y1], [x0 + x2, y0 + y2], atol=0.2)
            assert x0 < x2
            assert y0 > y2

    def test_chart_leaves_out_what_is_no_number(self):
        lines = [Line("x", [1, 2, 3, 4], [1.0, None, 0.0, 2.0]), Line("y", [1], [1.5])]
        (drawn,) = chart("t", lines, "epoch", "y", log=True)
        page = ET.fromstring(drawn.figure())
        assert not list(page.iter("polyline"))  # A gap is no line.
        assert len(list(page.iter("circle"))) == 3
        assert chart("t", [Line("x", [1], [None])], "epoch", "y") == []
