"""What one shows others: the report of a run, of several, and of a `jpc.fit`."""

import itertools
import json
import math
import re
import subprocess
import sys
import types
import xml.etree.ElementTree as ET
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import install_import_hook
from scipy.special import stdtr

import jpc

with install_import_hook("jpc.cli", "beartype.beartype"):
    from jpc import _significance as significance
    from jpc._significance import Sample
    from jpc.cli import check, diagnose, journal, outcome, svg
    from jpc.cli.compare import compare_runs, write_comparison
    from jpc.cli.config import ConfigError
    from jpc.cli.folder import RunFolder
    from jpc.cli.inferred import certify
    from jpc.cli.report import Report
    from jpc.cli.svg import Line, Mark, chart, matrix, scatter
    from jpc.cli.train import prepare

SVG = "http://www.w3.org/2000/svg"
EVIL = "<script>alert(1)</script>\"'&"


def parse(page):
    return ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


def diagnose_as(error=0.001, **others):
    certificate = dict(
        energy=1.0,
        equilibrium_energy=0.9,
        excess=0.1,
        gradient_error=error,
        layer_gradient_errors=[error, error],
        found=1.0,
    )
    return dict(
        energies=[0.1, 0.2],
        weight_norms=[1.0, 2.0],
        gradient_norms=[0.1, None],
        activity_gradient=None,
        converged=0.5,
        certificate=certificate,
        course=dict(times=[0.0, 0.1, 1.0], energies=[[0.0, 1.0], [1e-5, 0.9], [0.1, 0.2]]),
        **others,
    )


def records_of(accuracies, **others):
    return [
        dict(epoch=i, step=i, seconds=1.0, loss=1 / i, test_acc=acc, diagnosis=diagnose_as())
        | others
        for i, acc in enumerate(accuracies, start=1)
    ]


class FakeTask:
    """Scores and data by hand."""

    def __init__(self, scores, labels, shape, classes, loss="mse"):
        images = np.arange(len(labels) * math.prod(shape), dtype=np.float32)
        dataset = types.SimpleNamespace(
            test=(images.reshape(len(labels), -1), np.asarray(labels)),
            shape=shape,
            classes=classes,
            restore=lambda x: np.clip(np.reshape(x, (-1, *shape)) / 100, 0, 1),
            schema=types.SimpleNamespace(inputs=[f"x{i}" for i in range(math.prod(shape))]),
        )
        config = types.SimpleNamespace(
            data=types.SimpleNamespace(task="discriminative"),
            energy=types.SimpleNamespace(loss=loss),
        )
        self.setting = types.SimpleNamespace(dataset=dataset, config=config)
        self._scores = np.asarray(scores, np.float32)

    def imagine(self, state, causes):
        return None

    def predict(self, state, inputs):
        return jnp.asarray(self._scores[: len(inputs)])


SCORES = [[3, 0, 0], [2, 1, 0], [0, 0, 5], [0, 4, 1], [1, 0, 0]]
LABELS = [0, 1, 1, 1, 2]  # The third and the second and the last are wrong, in that order.
observe = getattr(outcome.observe, "__wrapped__", outcome.observe)  # Of what is no real task.


class TestOutcome:
    def test_counts_and_worst_mistakes(self):
        found = observe(FakeTask(SCORES, LABELS, (1, 2, 2), ("a", "b", "c")), {})
        assert found.confusion().tolist() == [[1, 0, 0], [1, 1, 1], [1, 0, 0]]
        assert [picture.caption for picture in found.pictures] == ["c, is b", "a, is b", "a, is c"]
        np.testing.assert_allclose(found.pictures[0].image, [[[0.08, 0.09], [0.10, 0.11]]])
        assert found.confused(1) == [("b", "a", 1)]

    def test_rows_where_the_data_are_no_images(self):
        found = observe(FakeTask(SCORES, LABELS, (3,), ("a", "b", "c"), "ce"), {})
        assert found.pictures == ()
        assert found.rows[0] == ("2", "b", "c (99 %)", "0.06", "0.07", "0.08")
        assert found.features == ("x0", "x1", "x2")
        page = parse(Report(records=records_of([50.0]), outcome=found).page())
        assert "Worst mistakes" in [title.text for title in page.iter("h2")]

    @pytest.mark.parametrize("shape", [(3,), (1, 2, 2)])
    def test_no_mistakes(self, shape):
        task = FakeTask(SCORES[:1], LABELS[:1], shape, ("a", "b", "c"))
        restore = task.setting.dataset.restore  # The real one refuses to restore nothing.
        task.setting.dataset.restore = lambda x: restore(x[[0]])
        found = observe(task, {})
        assert found.pictures == found.rows == ()

    def test_many_are_taken_in_turn(self, monkeypatch):
        """The last of them, which are fewer, too."""
        monkeypatch.setattr(outcome, "_CHUNK", 2)
        images = np.arange(5.0)[:, None]
        seen = []
        found = outcome._in_chunks(lambda x: seen.append(len(x)) or 2 * x, images)
        assert seen == [2, 2, 2]
        np.testing.assert_array_equal(found, 2 * images)


def boxes(element):
    """Where the texts of a drawing are, generously; upright ones stand."""
    for text in element.iter("text"):
        x, y, width = float(text.get("x")), float(text.get("y")), 8.0 * len(text.text)
        left = x - dict(start=0, middle=width / 2, end=width)[text.get("text-anchor")]
        if "rotate" in (text.get("transform") or ""):
            yield x - 10, y - width, x, y, text.text
        else:
            yield left, y - 10, left + width, y, text.text


class TestDrawings:
    def check_apart(self, drawing):
        page = ET.fromstring(f"<svg>{drawing.drawn}</svg>")
        for one, two in itertools.combinations(boxes(page), 2):
            beside = one[2] <= two[0] or two[2] <= one[0]
            above = one[3] <= two[1] or two[3] <= one[1]
            assert beside or above, (one, two)
        assert all(left >= 0 for left, *_ in boxes(page))

    @pytest.mark.parametrize("ys", [[1e-9, 1e-3, 1e4], [1e-5, 2e-5, 3e-5], [0.11, 0.2, 0.8]])
    @pytest.mark.parametrize("log", [True, False])
    def test_labels_overprint_nothing(self, ys, log):
        for x_label, log_x in (("epoch", False), ("time", True)):
            lines = [Line("a", [1, 100, 1000], ys)]
            (drawn,) = chart("t", lines, x_label, "energy", log=log, log_x=log_x)
            self.check_apart(drawn)

    @pytest.mark.parametrize("names", [list("0123456789"), ["airplane", "a very long name", "c"]])
    def test_labels_of_a_matrix_overprint_nothing(self, names):
        (drawn,) = matrix("m", names, np.eye(len(names), dtype=int).tolist(), "")
        self.check_apart(drawn)

    def test_gaps_are_gaps(self):
        ys = [1.0, 2.0, None, 3.0, float("nan"), 4.0, 5.0]
        (drawn,) = chart("t", [Line("a", range(7), ys)], "epoch", "y")
        page = ET.fromstring(drawn.figure())
        assert [len(line.get("points").split()) for line in page.iter("polyline")] == [2, 2]
        assert len(list(page.iter("circle"))) == 1

    def test_band_is_around_its_line(self):
        line = Line("a", [1, 2], [1.0, 2.0], [0.5, 1.0], [1.5, 3.0])
        (drawn,) = chart("t", [line], "epoch", "y")
        page = ET.fromstring(drawn.figure())
        points = lambda tag: [
            tuple(map(float, p.split(","))) for p in next(page.iter(tag)).get("points").split()
        ]
        (low, _, _, high), (middle, _) = points("polygon"), points("polyline")
        assert low[1] > middle[1] > high[1]

    def test_best_epoch_is_marked(self):
        page = Report(records=records_of([90.0, 95.0, 95.0, 94.0])).page()
        assert "best epoch: 2, 95.0 %" in page
        mark = chart("t", [Line("a", [1, 2], [1.0, 3.0])], "epoch", "y", mark=Mark(2, 3.0, "b"))
        page = ET.fromstring(mark[0].figure())
        (ring,) = page.iter("circle")
        (line,) = page.iter("polyline")
        assert line.get("points").split()[1] == f"{ring.get('cx')},{ring.get('cy')}"
        assert [name for _, name in mark[0].legend] == ["a", "b"]

    def test_predictions_lie_where_they_are(self):
        """On the line where they are right, and as far above it as they are too large."""
        (drawing,) = scatter("t", [1.0, 2.0, 9.0], [1.0, 4.0, 7.0], "true", "said", "note")
        page = ET.fromstring(drawing.file())
        places = [(float(c.get("cx")), float(c.get("cy"))) for c in page.iter(f"{{{SVG}}}circle")]
        (line,) = (p.get("points") for p in page.iter(f"{{{SVG}}}polyline"))
        (x0, y0), (x1, y1) = (map(float, spot.split(",")) for spot in line.split())
        above = [y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y for x, y in places]
        np.testing.assert_allclose(above[0], 0, atol=0.1)
        np.testing.assert_allclose(above[1], -above[2], atol=0.2)
        assert above[1] > 10

    def test_best_epoch_is_that_of_validation(self):
        records = records_of([90.0, 95.0, 94.0])
        for record, chosen in zip(records, [80.0, 81.0, 82.0], strict=True):
            record["val_acc"] = chosen
        page = Report(records=records).page()
        assert "best epoch: 3, 94.0 %" in page
        assert "epoch 3, chosen on validation" in page

    def test_files_stand_alone(self):
        (drawn,) = chart("A & <B>", [Line("a", [1], [1.0]), Line(EVIL, [1], [2.0])], "epoch", "y")
        page = ET.fromstring(drawn.file())
        assert page.tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(" not in drawn.file()
        assert EVIL in [text.text for text in page.iter("{http://www.w3.org/2000/svg}text")]
        assert drawn.name == "a-b"


class TestReport:
    def test_nothing_is_executed(self):
        """Whatever the data are called."""
        found = observe(FakeTask(SCORES, LABELS, (3,), (EVIL, "b", "c")), {})
        config = check.make_config({})
        object.__setattr__(config.data, "dataset", EVIL)
        page = Report(records=records_of([50.0]), config=config, outcome=found).page()
        tags = {element.tag for element in parse(page).iter()}
        assert "script" not in tags
        assert "<script" not in page
        assert "://" not in page
        assert EVIL in "".join(parse(page).itertext())

    def test_what_is_no_number_is_said(self):
        page = Report(records=records_of([None], loss=None), status="failed").page()
        assert "test accuracy not a number" in page
        parse(page)

    @pytest.mark.parametrize(
        "status, said", [("running", "if that is long ago"), ("interrupted", "--resume")]
    )
    def test_status(self, status, said):
        config = check.make_config({})
        page = Report(records=records_of([50.0]), status=status, config=config).page()
        assert said in page
        assert ('http-equiv="refresh"' in page) == (status == "running")

    def test_every_number_is_explained(self):
        """Large ones and those of tables and figures have a word below them."""
        config = check.make_config({})
        found = observe(FakeTask(SCORES, LABELS, (3,), ("a", "b", "c")), {})
        page = parse(Report(records=records_of([50.0]), config=config, outcome=found).page())
        assert all(figure.find("p") is not None for figure in page.iter("figure"))
        (numbers,) = [e for e in page.iter("div") if e.get("class") == "numbers"]
        assert all(len(list(card.iter("small"))) == 2 for card in numbers)

    def test_share_that_converged(self):
        """It says of what it is a share, and its axis ends at 1."""
        shown = parse(Report(records=records_of([50.0], converged=1.0)).page())
        (figure,) = [f for f in shown.iter("figure") if f.find("figcaption").text == "Converged"]
        assert "share of the training examples" in figure.findall("p")[-1].text.lower()
        ticks = [t.text for t in figure.iter() if t.tag.endswith("text")]
        assert "1" in ticks and not any(tick.startswith("1.") for tick in ticks)

    def test_rule_is_named_and_zero_has_no_sign(self):
        config = check.make_config(dict(training=dict(rule="backprop")))
        made = Report(records=records_of([50.0]), config=config).page()
        assert "mlp 3 x 256, backprop, equilibrium, seed 0" in made
        assert svg.Axis(-1.0, 1.0, [-0.0]).show(-0.0) == "0"

    def test_titles_stay_with_their_figures_on_paper(self):
        """Looked at in Chromium: otherwise a title and half of its words end a page."""
        printed = Report(records=records_of([50.0])).page().partition("@media print")[2]
        assert re.search("h2, h3, section > p { break-after: avoid", printed)
        assert re.search(r"tr, p { break-inside: avoid", printed)

    @pytest.mark.parametrize(
        "error, said",
        [
            (1e-4, "at equilibrium: the learning gradient differs by 0.01 %"),
            (0.05, "close to equilibrium"),
            (0.3, "short of equilibrium.*give more --steps"),
            (3.0, "far from equilibrium.*300 %"),
            (None, "not known"),
        ],
    )
    def test_certificate_in_words(self, error, said):
        assert re.search(said, certify("descent", diagnose_as(error)))

    def test_rules_without_inference_have_no_distance(self):
        """Nor advice on --inference, which they do not take."""
        configs = [check.make_config(dict(training=dict(rule=r))) for r in ("pc", "nudged")]
        pages = [Report(records=records_of([50.0]), config=config).page() for config in configs]
        assert ["Where equilibrium ended" in page for page in pages] == [True, False]


def test_course_shows_the_error_spreading():
    """Until it is everywhere: to the energy that theory gives for equilibrium."""
    tables = {"network": {"depth": 3, "width": 6, "activation": "linear", "bias": False}}
    tables |= {"energy": {"loss": "mse"}, "training": {"precision": "float64"}}
    tables["energy"]["output_precision"] = 1.0
    task = prepare(check.make_config(tables), progress=False)
    setting = task.setting
    images, labels = setting.dataset.train[0][:20], jax.nn.one_hot(np.arange(20) % 10, 10)
    problem = task.problem(task.state(), jnp.asarray(images, float), labels)
    course = diagnose.follow(problem, setting.config, setting.inference, setting.options)
    energies = np.asarray(course["energies"])
    errors = np.sum((setting.states(problem.params, problem.input)[-1] - labels) ** 2, axis=1) / 2
    few = np.argsort(errors)[-diagnose._FLOW_EXAMPLES :]  # Those that have the most to spread.
    np.testing.assert_allclose(np.sum(energies[0]), errors[few].mean(), rtol=1e-6)
    there = jpc.linear_equilib_energy(problem.params, problem.input[few], problem.output[few])
    np.testing.assert_allclose(np.sum(energies[-1]), there, rtol=0.01)
    assert np.all(energies[-1] > 1e-3 * there)
    assert energies[1, 0] < 1e-2 * energies[-1, 0]  # Not yet, at first.
    assert len(course["times"]) == len(energies)


class TestSignificance:
    A, B = Sample("a", [96.1, 95.8, 96.4, 96.0]), Sample("b", [95.2, 95.9, 94.8])

    def test_welch(self):
        """Against the formulas of the paper."""
        means, variances, sizes = (
            np.array([f(s.values) for s in (self.A, self.B)])
            for f in (np.mean, lambda v: np.var(v, ddof=1), len)
        )
        parts = variances / sizes
        t = (means[0] - means[1]) / np.sqrt(np.sum(parts))
        freedom = np.sum(parts) ** 2 / np.sum(parts**2 / (sizes - 1))
        expected = 2 * stdtr(freedom, -abs(t))
        np.testing.assert_allclose(significance.welch(self.A, self.B), expected, rtol=1e-6)

    def test_holm(self):
        """The example of a textbook, and what cannot be told."""
        found = significance.holm([0.01, 0.04, 0.03, 0.005])
        np.testing.assert_allclose(found, [0.03, 0.06, 0.06, 0.02])
        assert math.isnan(significance.holm([math.nan, 0.2])[0])

    def test_words(self):
        judge = lambda *samples, more=True: significance.judge(
            samples, more_is_better=more, unit=" %"
        )
        (said,) = judge(Sample("a", [1.0, 1.1, 0.9]), Sample("b", [5.0, 5.1, 4.9]))
        assert said.startswith("b is better than a: 5 ± 0.1 % against 1 ± 0.1 % (3 and 3 runs)")
        (said,) = judge(Sample("a", [1.0, 1.1]), Sample("b", [5.0, 5.1]), more=False)
        assert said.startswith("a is better than b")
        (said,) = judge(self.A, Sample("b", [96.0, 96.2, 95.9]))
        assert said.startswith("No difference can be told")
        (said,) = judge(self.A, Sample("b", [90.0]))
        assert "other seeds" in said
        (said,) = judge(Sample("a", [1.0, 1.0]), Sample("b", [1.0, 1.0]))
        assert said.endswith("they are the same.")
        assert "correction for 3 pairs" in judge(self.A, self.B, Sample("c", [1.0, 2.0]))[0]


class TestCompare:
    @pytest.fixture
    def folders(self, tmp_path):
        made = []
        for width, seed, end in [(8, 0, 90.0), (8, 1, 92.0), (9, 0, 50.0), (9, 1, None)]:
            folder = RunFolder(tmp_path / f"{width}-{seed}")
            tables = {"network": {"width": width}, "training": {"seed": seed}}
            folder.begin(check.make_config(tables))
            for record in records_of([40.0 + seed, end]):
                folder.append(record)
            made.append(folder)
        return made

    def test_seeds_are_one_group(self, folders):
        found = compare_runs(folders)
        assert [group.name for group in found.groups] == ["width 8", "width 9"]
        line = found.groups[0].line("test_acc")
        np.testing.assert_allclose(line.ys, [40.5, 91.0])
        np.testing.assert_allclose(line.high, [40.5 + np.sqrt(0.5), 91 + np.sqrt(2)])
        assert any("width 9: 1 of 2 runs diverged" in said for said in found.verdict())
        assert re.search(r"width 8 +2 +91 +1.414 +90 +92", found.text())
        assert found.plot("svg").lstrip().startswith(b"<?xml")

    def test_report(self, folders, tmp_path):
        write_comparison(compare_runs(folders), tmp_path / "new" / "both.html")
        page = (tmp_path / "new" / "both.html").read_text()
        titles = [title.text for title in parse(page).iter("h2")]
        assert titles == ["Result", "Learning curves", "Runs", "What they share"]
        assert "://" not in page
        names = {path.name for path in (tmp_path / "new").glob("*.svg")}
        assert names == {"both-test-accuracy.svg", "both-training-loss.svg"}

    def test_of_different_data_nothing_is_said(self, folders, tmp_path):
        other = RunFolder(tmp_path / "other")
        other.begin(check.make_config({"data": {"dataset": "mnist"}}))
        other.append(records_of([40.0])[0])
        (said,) = compare_runs([*folders, other]).verdict()
        assert said.startswith("These runs differ in data.dataset: their test accuracy is not of")

    def test_the_same_seed_counts_once(self, folders, tmp_path):
        again = RunFolder(tmp_path / "again")
        again.begin(folders[0].read_config())
        for record in folders[0].read_metrics():
            again.append(record)
        assert len(compare_runs([*folders, again]).groups[0].runs) == 2
        with pytest.raises(ConfigError, match="given twice"):
            compare_runs([folders[0], folders[0]])


def step(*, w, input, output, key):
    loss = jnp.mean((w[0] * input - output) ** 2)
    return dict(w=w - 0.1 * jnp.mean(w[0] * input - output), loss=loss, energies=loss * w)


DATA = (jnp.ones((4, 1)), 2 * jnp.ones((4, 1)))
FIT = dict(batch_size=2, key=jr.key(0), metrics=("loss", "energies"), progress=False)


def fit(folder, epochs=3, **options):
    return jpc.fit(step, dict(w=jnp.ones(2)), DATA, epochs=epochs, report=folder, **FIT, **options)


class TestFit:
    def test_writes_what_it_knows(self, tmp_path):
        mine = lambda w: dict(diagnosis=[[1.0]], many=list(range(1000)), odd=float("nan"))
        fitted = fit(tmp_path / "new" / "run", inspect=mine)
        folder = RunFolder(tmp_path / "new" / "run")
        history = [dict(record, odd=None) for record in fitted.history]
        assert folder.read_metrics() == history
        page = folder.report.read_text()
        titles = [title.text for title in parse(page).iter("h2")]
        assert titles == ["Learning curves", "Energies of the layers", "Machine"]
        assert "run: training loss" in page
        assert "Finished. Epoch 3 of 3" in page
        run = jpc.load_run(folder.path)
        assert run.history == history
        assert "epoch 3, training loss" in repr(run)
        with pytest.raises(ValueError, match=r"jpc.fit.report=.* history only"):
            _ = run.model

    @pytest.mark.parametrize(
        "error, said", [(KeyboardInterrupt, "Interrupted"), (RuntimeError, "Failed")]
    )
    def test_says_how_it_ended(self, tmp_path, error, said):
        def stop(record):
            if record["epoch"] == 2:
                raise error

        with pytest.raises(error):
            fit(tmp_path, callbacks=[stop])
        page = (tmp_path / "report.html").read_text()
        assert f"{said}. Epoch 1 of 3" in page
        assert "jpc train" not in page

    def test_overwrites_nothing(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match="is a file: name a folder"):
            fit(tmp_path / "file")
        RunFolder(tmp_path / "command").begin(check.make_config({}))
        with pytest.raises(ValueError, match="a run of the command in it"):
            fit(tmp_path / "command")
        fit(tmp_path / "run", epochs=1)
        with pytest.raises(FileExistsError, match="name another folder"):
            fit(tmp_path / "run", epochs=1)

    def test_goes_on_with_checkpoints(self, tmp_path):
        folder, saved = tmp_path / "run", tmp_path / "saved"
        fit(folder, epochs=1, checkpoints=jpc.Checkpoints(saved))
        fit(folder, epochs=2, checkpoints=jpc.Checkpoints(saved, resume=True))
        other = tmp_path / "other"
        fit(other, epochs=3, checkpoints=jpc.Checkpoints(saved, resume=True))
        for path, epochs in ((folder, [1, 2]), (other, [1, 2, 3])):
            assert [record["epoch"] for record in RunFolder(path).read_metrics()] == epochs

    def test_report_goes_on_while_it_runs(self, tmp_path, monkeypatch):
        monkeypatch.setattr(journal, "_PAUSE", -1.0)
        seen = []
        look = lambda record: seen.append((tmp_path / "report.html").exists())
        fit(tmp_path, callbacks=[look])
        assert seen == [False, True, True]


class TestLoadRun:
    def test_folder_of_something_else(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"neither config.toml nor metrics.jsonl"):
            jpc.load_run(tmp_path)

    def test_nothing_saved(self, tmp_path):
        folder = RunFolder(tmp_path)
        folder.begin(check.make_config({}))
        run = jpc.load_run(str(tmp_path))
        assert "epoch 0 of 20" in repr(run)
        with pytest.raises(FileNotFoundError, match="has no checkpoint"):
            _ = run.model

    def test_says_what_to_install(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "jpc.cli.run", None)
        with pytest.raises(ImportError, match="pip install"):
            jpc.load_run(tmp_path)

    def test_core_leaves_the_command_alone(self):
        code = "import json, sys, jpc; jpc.fit; print(json.dumps(list(sys.modules)))"
        root = str(Path(jpc.__file__).parents[1])
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
        )
        unwanted = ("jpc.cli", "jpc.data", "matplotlib", "typer", "PIL")
        assert not [name for name in json.loads(done.stdout) if name.startswith(unwanted)]


def test_superscripts_are_short():
    axis = svg.log_axis([1e-8, 1.0])
    assert axis.show(1e-8) == "10⁻⁸"
    for values, ticks in (
        ([0.003, 0.009], [0.002, 0.005, 0.01]),
        ([9.5, 15.8], [5, 10, 20]),
        ([10.0, 10.0], [10, 20]),
        ([1e-6, 2e2], [1e-6, 1e-4, 1e-2, 1, 100]),
    ):
        axis = svg.log_axis(values)
        assert axis.ticks == pytest.approx(ticks)
        assert axis.low <= min(values) <= max(values) <= axis.high
