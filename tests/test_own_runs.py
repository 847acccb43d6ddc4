"""The `jpc` command on files of people's own: a table of classes, and numbers to predict."""

import csv
import dataclasses
import json
import re
import shutil
import time
import tomllib
import xml.etree.ElementTree as ET

import jax
import numpy as np
import pytest
from jaxtyping import install_import_hook
from PIL import Image
from typer.testing import CliRunner

import jpc.data

with install_import_hook("jpc.cli", "beartype.beartype"):
    from jpc.cli import check, describe, own, text, train as train_module
    from jpc.cli.app import app
    from jpc.cli.config import ConfigError, Data
    from jpc.cli.folder import RunFolder
    from jpc.cli.outcome import predict_numbers
    from jpc.cli.toml import as_tables, write_tables
    from jpc.cli.train import Watcher

QUICK = ["--inference", "descent", "--depth", 2, "--activity-decay", 1e-9]  # Quick to compile.
RNG = np.random.default_rng(0)
X = RNG.normal(size=(100, 3)) * [1, 10, 100]
NUMBERS = np.c_[1000 + 5 * X[:, 0], X[:, 1]]


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


def succeed(*args):
    result = invoke(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def fail(*args):
    result = invoke(*args)
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr


def write_iris(path, rows=slice(None), labels=True):
    datasets = pytest.importorskip("sklearn.datasets")
    iris = datasets.load_iris()
    names = [*iris.feature_names, "species"][: None if labels else -1]
    words = iris.target_names[iris.target]
    every = [[*x, word][: len(names)] for x, word in zip(iris.data.tolist(), words, strict=True)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *every[rows]])
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def iris(place):
    """A run with a wide network and default settings."""
    path, out = write_iris(place / "my iris.csv"), place / "iris"
    with pytest.MonkeyPatch.context() as patch:
        nothing = dict(
            diagnosis=dict(certificate={}, converged=1.0)
        )  # The other run has a report.
        patch.setattr(Watcher, "look", lambda self, **state: nothing)
        patch.setattr(Watcher, "report", lambda self, status: None)
        said = succeed("train", "--dataset", path, *QUICK, "--epochs", 10, "--out", out)
    assert f"{path}: 120 to train, 30 to test; 4 features; 3 classes: setosa" in said
    return out


@pytest.fixture(scope="module")
def numbers(place):
    np.savez(place / "numbers.npz", x=X, y=NUMBERS)
    args = ["--dataset", place / "numbers.npz", *QUICK, "--epochs", 10]
    said = succeed("train", *args, "--out", place / "numbers")
    assert "regression of y 1, y 2" in said
    assert re.search(r"^test R² 0\.\d+ after 10 epochs$", said, re.MULTILINE)
    return place / "numbers"


class TestClasses:
    def test_are_learned(self, iris):
        last = RunFolder(iris).read_metrics()[-1]
        assert last["test_acc"] >= 90
        tables = tomllib.loads(RunFolder(iris).config.read_text())
        assert tables["data"]["dataset"].endswith("my iris.csv")
        assert (tables["data"]["task"], tables["energy"]["loss"]) == ("discriminative", "ce")
        assert tables["training"]["batch_size"] == 8

    def test_are_evaluated_on_another_file(self, iris, place):
        """The very test examples give the very test metrics."""
        test = jpc.data.load(place / "my iris.csv").test[0]
        whole = jpc.data.load(place / "my iris.csv").schema
        with (place / "my iris.csv").open() as file:
            header, *rows = csv.reader(file)
        at = whole.normalise(np.array([row[:4] for row in rows], float))
        chosen = [
            row for row, x in zip(rows, at, strict=True) if np.any(np.all(x == test, axis=1))
        ]
        with (place / "test.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *chosen])
        last = RunFolder(iris).read_metrics()[-1]
        found = json.loads(succeed("eval", iris, "--data", place / "test.csv", "--json"))
        assert found["test_acc"] == pytest.approx(last["test_acc"], abs=4)  # A double or two.
        said = fail("eval", iris, "--data", unlabelled(place))
        assert f"has no targets to compare with: jpc predict {iris} {place / 'new.csv'}" in said

    def test_are_predicted(self, iris, place):
        out = place / "new" / "predictions.csv"
        said = succeed("predict", iris, unlabelled(place), "--out", out)
        assert said == f"3 predictions: {out}\n"
        header, *rows = csv.reader(out.read_text().splitlines())
        assert header == ["example", "class", "probability"]
        assert [row[:2] for row in rows] == [["1", "setosa"], ["2", "versicolor"],
                                             ["3", "virginica"]]  # fmt: skip
        assert all(1 / 3 < float(row[2]) <= 1 for row in rows)
        assert succeed("predict", iris, unlabelled(place)) == out.read_text()
        head, *lines = unlabelled(place).read_text().splitlines()
        (place / "open.csv").write_text("\n".join([f"{head},species", *(f"{x}," for x in lines)]))
        assert succeed("predict", iris, place / "open.csv") == out.read_text()

    def test_predictions_destroy_nothing(self, iris, place):
        data = unlabelled(place)
        before = data.read_bytes()
        assert "not predictions" in fail("predict", iris, data, "--out", data)
        assert data.read_bytes() == before

    def test_are_predicted_without_the_training_data(self, iris, place):
        hidden = (place / "my iris.csv").rename(place / "hidden.csv")
        try:
            assert "setosa" in succeed("predict", iris, unlabelled(place))
            assert "no such file" in fail("eval", iris)
        finally:
            hidden.rename(place / "my iris.csv")

    def test_data_that_changed_is_noticed(self, iris, place, tmp_path):
        shutil.copytree(iris, tmp_path / "run")
        config = tmp_path / "run" / "config.toml"
        other = write_iris(tmp_path / "other.csv", slice(5, 150))
        config.write_text(config.read_text().replace(str(place / "my iris.csv"), str(other)))
        for args in (["eval", tmp_path / "run"], ["train", "--resume", tmp_path / "run"]):
            assert "other.csv is not what it was" in fail(*args)
        assert "--anyway" in fail("train", "--resume", tmp_path / "run")

    def test_new_files_that_do_not_fit(self, iris, place):
        (place / "bad.csv").write_text("sepal length (cm),x\n1,2\n")
        assert "bad.csv has no column 'sepal width (cm)'" in fail(
            "predict", iris, place / "bad.csv"
        )


def unlabelled(place):
    return write_iris(place / "new.csv", slice(10, None, 50), labels=False)


class TestRegression:
    def test_metric_is_that_of_the_predictions(self, numbers, place):
        """R^2 as it is defined, from predictions in the units of the file."""
        data = jpc.data.load(place / "numbers.npz")
        truth = data.schema.decode(data.test[1])
        np.savez(place / "test.npz", x=data.restore(data.test[0]), y=truth)
        rows = json.loads(succeed("predict", numbers, place / "test.npz", "--json"))
        made = np.array([[row["y 1"], row["y 2"]] for row in rows])
        r2 = 1 - np.sum((made - truth) ** 2, axis=0) / np.sum((truth - truth.mean(0)) ** 2, axis=0)
        last = RunFolder(numbers).read_metrics()[-1]
        assert "test_acc" not in last and last["test_r2"] > 0.5
        np.testing.assert_allclose(last["test_r2"], r2.mean(), rtol=1e-3)
        found = json.loads(succeed("eval", numbers, "--data", place / "test.npz", "--json"))
        np.testing.assert_allclose(found["test_r2"], last["test_r2"], rtol=1e-3)

    def test_report_and_table(self, numbers, iris):
        page = RunFolder(numbers).report.read_text()
        ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
        assert "<h1>numbers, regression: test R² 0." in page
        task = train_module.prepare(RunFolder(numbers).read_config(), progress=False)
        state = train_module.restore(task, RunFolder(numbers))
        first, second = predict_numbers(task, state)
        truth = task.setting.dataset.schema.decode(task.setting.dataset.test[1])
        np.testing.assert_allclose(first.truths, truth[:, 0])
        assert np.corrcoef(first.truths, first.guesses)[0, 1] > 0.7
        assert page.count("Predicted y ") == 2 * 2 and second.name == "y 2"
        table = succeed("compare", numbers, iris)
        assert re.search(r"^test_r2 +0\.\d+ +- *$", table, re.MULTILINE)

    def test_what_makes_no_sense(self, place, numbers, iris, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        npz, table = place / "numbers.npz", place / "my iris.csv"
        for args, message in (
            ((npz, "--loss", "ce"), "--loss ce is for labels"),
            ((npz, "--loss", "bernoulli"), "data of your own are normalised: mse or huber"),
            (
                (npz, "--image-size", 8),
                r"numbers.npz is no folder of images: leave out image_size \(--image-size\)",
            ),
            ((npz, "--task", "generative"), "2 numbers to predict, not classes"),
            ((npz, "--network", "vgg5"), "--network vgg5 is for images"),
            ((table, "--task", "regression"), "'setosa' is not a number"),
            ((table, "--batch-size", 121), "121, but .* has 120 examples to train with"),
            ((table, "--target", "x"), "has no column 'x'"),
            ((table, "--target", "Specie"), "Did you mean species?"),
        ):
            assert re.search(message, fail("train", "--dataset", *args))
        assert f"jpc train --dataset {table}" in fail("train", table)
        assert not list(tmp_path.iterdir())


class TestSettings:
    def dataset(self, examples, tmp_path):
        np.savez(tmp_path / "my.npz", x=np.eye(examples), y=np.arange(examples) % 2)
        return jpc.data.load(tmp_path / "my.npz")

    @pytest.mark.parametrize("examples, size, epochs", [(6, 4, 50), (125, 8, 50), (1250, 64, 40)])
    def test_suit_the_size(self, examples, size, epochs, tmp_path):
        given = dict(data=dict(dataset=str(tmp_path / "my.npz")))
        config = own.settle(check.make_config(given), self.dataset(examples, tmp_path))
        assert (config.training.batch_size, config.training.epochs) == (size, epochs)
        assert config.optimiser.learning_rate == 1e-3
        text = write_tables(as_tables(config))
        assert check.make_config(tomllib.loads(text)) == config

    def test_that_are_given_are_kept(self, tmp_path):
        given = dict(
            data=dict(dataset=str(tmp_path / "my.npz")),
            training=dict(epochs=3, batch_size=5),
            optimiser=dict(learning_rate=0.5),
        )
        config = own.settle(check.make_config(given), self.dataset(100, tmp_path))
        assert (config.training.epochs, config.training.batch_size) == (3, 5)
        assert config.optimiser.learning_rate == 0.5

    def test_a_validation_part_is_there_to_stop_by(self, tmp_path):
        given = dict(data=dict(dataset=str(tmp_path / "my.npz")), training=dict(patience=2))
        dataset = self.dataset(20, tmp_path)
        with pytest.raises(ConfigError, match="--patience needs a validation set"):
            own.settle(check.make_config(given), dataset)
        with_part = dataclasses.replace(dataset, validation=dataset.test)
        assert own.settle(check.make_config(given), with_part).training.patience == 2

    def test_a_loaded_run_has_its_targets(self, tmp_path):
        lines = [f"{i},{i * i},{i % 7}.5" for i in range(40)]
        (tmp_path / "my.csv").write_text("\n".join(["a,b,c", *lines]))
        given = dict(data=dict(dataset=str(tmp_path / "my.csv"), target="a,b"))
        config = check.make_config(given)
        dataset = own.load_own(config.data, flatten=True)
        RunFolder(tmp_path / "run").begin(own.settle(config, dataset))
        run = jpc.load_run(tmp_path / "run")
        assert run.data.schema.targets == ("a", "b")
        np.testing.assert_array_equal(run.data.train[0], dataset.train[0])

    def test_names(self):
        names = {"a/my data.csv": "my data", "mod.ule:make": "make", "mnist": "mnist", "/": "data"}
        assert {path: Data(dataset=path).name for path in names} == names

    @pytest.mark.parametrize("path", ['a"b.csv', "back\\slash.csv", "é\n.csv"])
    def test_paths_survive_toml(self, path):
        text = write_tables(dict(data=dict(dataset=path)))
        assert tomllib.loads(text)["data"]["dataset"] == path


def test_a_published_data_set_is_no_file_of_new_examples(iris):
    assert "digits is a data set, and not a file" in fail("predict", iris, "digits")
    assert f"jpc eval {iris} evaluates" in fail("eval", iris, "--data", "mnist")


def test_a_run_that_stops_early_predicts(place, iris, monkeypatch):
    """From its best epoch, with data of which nothing is set apart."""
    nothing = dict(diagnosis=dict(certificate={}, converged=1.0))
    monkeypatch.setattr(Watcher, "look", lambda self, **state: nothing)
    monkeypatch.setattr(Watcher, "report", lambda self, status: None)
    path, out = place / "my iris.csv", place / "early"
    args = ["--validation", 24, "--patience", 1, "--epochs", 2, "--out", out]
    succeed("train", "--dataset", path, *QUICK, *args)
    assert succeed("predict", out, path).count("\n") == 151
    whole = json.loads(succeed("eval", out, "--data", path, "--json"))
    right = [row.split(",")[1] for row in succeed("predict", out, path).splitlines()[1:]]
    truth = [row.split(",")[-1] for row in path.read_text().splitlines()[1:]]
    shares = np.mean([a == b for a, b in zip(right, truth, strict=True)])
    np.testing.assert_allclose(whole["test_acc"], 100 * shares, rtol=1e-5)


def test_what_takes_long_to_read_is_said_to_be_read(place, tmp_path, monkeypatch):
    def wait(*args, **named):
        time.sleep(0.5)
        raise ConfigError("It was read.")

    monkeypatch.setattr(text, "_WHILE", 0.01)
    monkeypatch.setattr(train_module, "load_data", wait)
    result = invoke("train", "--out", tmp_path / "run")
    assert (result.stdout, result.exit_code) == ("reading the data ...\n", 2)
    assert invoke("train", "--quiet", "--out", tmp_path / "run").stdout == ""
    monkeypatch.setattr(describe, "load", wait)
    result = invoke("data", "describe", "digits")
    assert (result.stdout, result.stderr.splitlines()[0]) == ("", "reading the data ...")


def test_a_run_is_said_to_be_evaluated(iris, place, monkeypatch):
    """On stderr, since what is said there is no result."""
    monkeypatch.setattr(text, "_WHILE", 0.01)
    predict = ["predict", iris, place / "my iris.csv"]
    for args, said in ((["eval", iris], "evaluating the run"), (predict, "predicting")):
        assert invoke(*args).stderr == f"{said} ...\n"
        assert invoke(*args, "--json").stderr == ""


class TestDescription:
    def test_of_a_table(self, iris, place, tmp_path):
        said = succeed("data", "describe", place / "my iris.csv", "--picture", tmp_path / "p.png")
        assert re.search(r"^train +120$", said, re.MULTILINE)
        assert re.search(r"^feature sepal width \(cm\) +2 to 4\.4, mean 3\.0", said, re.MULTILINE)
        assert re.search(r"^class setosa +40 to train, 10 to test$", said, re.MULTILINE)
        assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")

    def test_of_images_and_of_numbers(self, numbers, place, tmp_path):
        np.savez(tmp_path / "images.npz", x=X.reshape(20, 5, 3), y=np.arange(20) % 2)
        path = tmp_path / "images.npz"
        said = succeed("data", "describe", path, "--picture", tmp_path / "p.png")
        assert re.search(r"^input +1 x 5 x 3 \(an image\)$", said, re.MULTILINE)
        assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
        found = json.loads(succeed("data", "describe", place / "numbers.npz", "--json"))
        assert found["train"] == 80 and "mean 998.8" in found["target y 1"]

    def test_zeros_are_zeros(self, tmp_path):
        """Which they are not quite, once they have been normalised and restored."""
        rows = [f"{i % 7 * 0.73:.2f},{i % 3 * 1.1:.1f},{'ab'[i % 2]}" for i in range(40)]
        (tmp_path / "zeros.csv").write_text("\n".join(["p,q,kind", *rows]))
        said = succeed("data", "describe", tmp_path / "zeros.csv")
        assert re.search(r"^feature p +0 to 4\.38,", said, re.MULTILINE)
        assert re.search(r"^feature q +0 to 2\.2,", said, re.MULTILINE)

    def test_without_targets(self, tmp_path):
        """Which part has none, and what is not used, is said."""
        np.savez(tmp_path / "half.npz", x_train=X, y_train=X[:, 0] > 0, x_test=X, more=X)
        said = succeed("data", "describe", tmp_path / "half.npz")
        assert "half.npz has no targets of its test data. Call them y_test" in said
        assert "without its keys 'y_train', 'more'" in said

    def test_what_a_function_prints_is_no_json(self, tmp_path, monkeypatch):
        text = "def talks():\n    print('reading')\n    return [[0], [1]] * 9, [0, 1] * 9\n"
        (tmp_path / "own_module.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        result = invoke("data", "describe", "own_module:talks", "--json")
        assert json.loads(result.stdout)["train"] == 14 and "reading" in result.stderr

    def test_of_what_is_not_there(self):
        assert "'x' is no data set" in fail("data", "describe", "x")
        assert "or a path. Did you mean mnist?" in fail("data", "describe", "mnits")
        assert "x.csv: there is no such file" in fail("data", "describe", "x.csv")


def test_a_picture_for_a_run_on_digits(tmp_path):
    """It is normalised as the digits are."""
    images = jpc.data.load("digits", normalise=False).test[0][:1]
    Image.fromarray(np.uint8(255 * images[0, 0])).save(tmp_path / "digit.png")
    np.savez(tmp_path / "digit.npz", x=16 * images)
    for name in ("digit.png", "digit.npz"):
        new = own.read_new(RunFolder(tmp_path), check.make_config({}), str(tmp_path / name))
        expected = jpc.data.load("digits", flatten=True).test[0][:1]
        np.testing.assert_allclose(new.dataset.test[0], expected, atol=0.02)
        assert (len(new.dataset.train[1]), new.labelled) == (1437, False)
