"""Sweeps: which settings, in which runs, and what is said of them. Training is played."""

import json
import re
import signal
import tempfile
import types
from pathlib import Path

import pytest
from jaxtyping import install_import_hook
from typer.testing import CliRunner

with install_import_hook("jpc.cli", "beartype.beartype"):
    from jpc.cli import sweep as sweep_module
    from jpc.cli.app import app
    from jpc.cli.check import make_config
    from jpc.cli.config import ConfigError
    from jpc.cli.folder import RunFolder
    from jpc.cli.grid import Range, Sweep, as_args, read_sweep
    from jpc.cli.summary import summarise
    from jpc.cli.sweep import Job, SweepFolder, choose_sweep_folder, run_sweep


def read(*args, draws=None, seeds=None):
    return read_sweep([str(arg) for arg in args], draws=draws, seeds=seeds)


class Trainer:
    """Plays `jpc train`: a run of a larger width is better, by 10 for each unit, less its seed. A
    width of 13 fails, and those in `killed` are.
    """

    def __init__(self, **noted):
        self.started, self.killed, self._noted = [], set(), noted

    def __call__(self, run, lock):
        self.started.append(run.name)
        run.path.mkdir(exist_ok=True)
        said, errors = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115
        width, seed = run.given.get("width", 1), run.given["seed"]
        record = dict(epoch=3, seconds=1.0, test_acc=10.0 * width - seed, diagnosis=[1])
        said.write(json.dumps(record | {k: v(width) for k, v in self._noted.items()}))
        errors.write("jpc: Slow.\njpc: It diverged. Try\n  less.\n" if width == 13 else "")
        code = -signal.SIGKILL if run.name in self.killed else int(width == 13)
        process = types.SimpleNamespace(returncode=code, poll=lambda: code)
        return Job(process, said, errors)


WRONG = {
    "--wdth 3,4": "no option --wdth. Did you mean --width",
    "--width 3,x": "--width takes whole numbers, with commas between them, got 'x'",
    "--width 3,0": "--width must be a whole number of at least 1, got 0",
    "--width 4..8": "--width 4..8 is a range: give --random",
    "--width": "--width needs a value",
    "--skips maybe": "maybe is no option|cannot be read",
    "--seed 1,2": "Give --seeds 3",
    "--depth 3": "Nothing to sweep",
    "--rule pc,bpc": "rule bpc, seed 0: --rule bpc goes with --task generative",
    "a.toml b.toml": "b.toml is no option",
    "--width 8..4 --random 3": "a range begins with its smaller end",
    "--random 3": "nothing to draw",
}


class TestSettings:
    def test_grid(self):
        sweep = read("--width", "4,8", "--learning-rate=1e-3,0.01", "--depth", 2, seeds=2)
        assert sweep.fixed == dict(depth=2)
        assert [(s["width"], s["learning_rate"]) for s in sweep.settings()] == [
            (4, 1e-3),
            (4, 1e-2),
            (8, 1e-3),
            (8, 1e-2),
        ]
        runs = SweepFolder(Path("x")).runs(sweep)
        assert len(runs) == 8
        assert runs[1].name == "width-4,learning-rate-0.001,seed-1"
        assert runs[1].given == dict(depth=2, width=4, learning_rate=1e-3, seed=1)

    def test_random_ones_stay_when_more_are_drawn(self):
        args = ("--learning-rate", "1e-4..1e-1", "--width", "8..64", "--activation", "tanh,relu")
        few, many = (read(*args, draws=n).settings() for n in (5, 12))
        assert many[:5] == few and len(many) == 12
        assert all(1e-4 <= s["learning_rate"] <= 1e-1 for s in many)
        assert all(isinstance(s["width"], int) and 8 <= s["width"] <= 64 for s in many)
        assert {s["activation"] for s in many} == {"tanh", "relu"}
        decay = [s["weight_decay"] for s in read("--weight-decay", "0..1", draws=9).settings()]
        assert max(decay) > 0.5  # A range from 0 is no logarithmic one.

    def test_file(self, tmp_path):
        file = tmp_path / "sweep.toml"
        file.write_text(
            "[sweep]\nseeds = 2\nrandom = 4\n[network]\nwidth = [4, 8]\nskips = [true, false]\n"
            '[optimiser]\nlearning_rate = "1e-4..1e-1"\n[training]\nepochs = 3\n'
        )
        sweep = read(file, "--epochs", 5)
        assert (sweep.draws, sweep.seeds, sweep.fixed) == (4, 2, dict(epochs=5))
        assert sweep.axes == dict(
            width=[4, 8], skips=[True, False], learning_rate=Range(1e-4, 1e-1, whole=False)
        )

    @pytest.mark.parametrize("args", WRONG)
    def test_wrong_ones_are_refused_before_anything_is_written(self, args, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(app, ["sweep", *args.split()])
        assert result.exit_code == 2
        assert re.search(WRONG[args], result.stderr), result.stderr
        assert not list(tmp_path.iterdir())

    def test_arguments_give_the_same_options(self):
        given = dict(learning_rate=1e-5, width=3, skips=False, bias=True, task="generative")
        assert read(*as_args(given)).fixed == given


class TestRuns:
    def test_go_on_where_they_were(self, tmp_path):
        sweep, folder = read("--width", "1,2,3", seeds=2), SweepFolder(tmp_path / "s")
        trainer = Trainer()
        trainer.killed = {"width-2,seed-0", "width-3,seed-1"}
        lines = []
        found = run_sweep(sweep, folder, jobs=2, tell=lines.append, start=trainer)
        assert len(trainer.started) == 6
        assert found["width-2,seed-0"]["error"] == "ended by SIGKILL"
        again = Trainer()
        found = run_sweep(sweep, folder, start=again)
        assert again.started == ["width-2,seed-0", "width-3,seed-1"]
        assert found["width-3,seed-1"]["record"] == dict(epoch=3, seconds=1.0, test_acc=29.0)
        more = Trainer()
        run_sweep(read("--width", "2,3,4", seeds=2), folder, start=more)
        assert more.started == ["width-4,seed-0", "width-4,seed-1"]
        with pytest.raises(ConfigError, match=r"another epochs \(by default\)"):
            run_sweep(read("--width", "1,2", "--epochs", 3), folder, start=trainer)

    def test_failures_are_said_and_not_repeated(self, tmp_path):
        sweep, folder = read("--width", "2,13"), SweepFolder(tmp_path / "s")
        lines, trainer = [], Trainer()
        run_sweep(sweep, folder, tell=lines.append, start=trainer)
        assert lines[-1] == "2/2  width-13,seed-0: failed: It diverged. Try less."
        report = folder.path / "width-13,seed-0" / "report.html"
        assert lines[-2] == f"training width-13,seed-0 ({report}) ..."
        results = run_sweep(sweep, folder, start=trainer)
        assert len(trainer.started) == 2
        found = summarise(sweep, folder.runs(sweep), results)
        assert found.table().splitlines()[1:] == ["2      20.0", "13     failed"]
        assert found.best.setting == dict(width=2)

    def test_one_sweep_at_a_time(self, tmp_path):
        sweep, folder = read("--width", "1,2"), SweepFolder(tmp_path / "s")
        folder.begin(sweep)
        with folder.locked(), pytest.raises(ConfigError, match="by another process"):
            run_sweep(sweep, folder, start=Trainer())

    def test_same_command_same_folder(self):
        paths = {
            choose_sweep_folder(None, read("--width", widths, seeds=n), "sweep").path
            for widths, n in (("1,2", None), ("1,2", 5), ("1,3", None))
        }
        assert len(paths) == 2

    def test_other_files_are_spared(self, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(ConfigError, match="not of a sweep"):
            run_sweep(read("--width", "1,2"), SweepFolder(tmp_path), start=Trainer())


class TestSummary:
    def test_best_is_chosen_by_the_validation_set(self, tmp_path):
        """Here the widest is best on the test set, and the narrowest on the other."""
        sweep, folder = read("--width", "1,2,3", "--epochs", 3, seeds=3), SweepFolder(tmp_path)
        results = run_sweep(sweep, folder, start=Trainer(val_acc=lambda width: 90.0 - width))
        found = summarise(sweep, folder.runs(sweep), results)
        assert found.by == "val_acc" and found.caution() == ""
        assert [row.setting["width"] for row in found.rows] == [1, 2, 3]
        assert found.table().splitlines()[1] == "1      89.0 ± 0.0  9.0 ± 1.0"
        assert found.say_best() == (
            "best: width 1, test accuracy 9.0 ± 1.0 % over 3 seeds; to train it: jpc train "
            "--epochs 3 --width 1"
        )
        assert found.plot().startswith(b"\x89PNG")
        assert found.csv().splitlines()[1] == "1,0,89.0,,10.0,,3,1.0"

    def test_without_one_it_says_that_the_test_set_chose(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sweep_module, "start_run", Trainer())
        result = CliRunner().invoke(app, ["sweep", "--width", "1,2"])
        assert result.exit_code == 0, result.output
        assert "best: width 2, test accuracy 20.0 %; to train it: jpc train --width 2" in (
            result.stdout
        )
        assert "--validation 0.1" in result.stdout
        (folder,) = tmp_path.glob("runs/digits-sweep-*")
        assert {"sweep.png", "sweep.csv"} <= {path.name for path in folder.iterdir()}

    def test_seeds_of_one_setting(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sweep_module, "start_run", Trainer())
        args = ["train", "--width", "5", "--seeds", "3", "--out", str(tmp_path / "s")]
        result = CliRunner().invoke(app, args)
        assert "test accuracy 49.0 ± 1.0 % over 3 seeds" in result.stdout
        found = json.loads(CliRunner().invoke(app, [*args, "--json"]).stdout)
        assert found["rows"][0]["test_acc"] == 49.0


def test_a_run_is_that_of_the_command(tmp_path, monkeypatch):
    """Here `echo` is the interpreter. A run that began goes on."""
    monkeypatch.setattr("sys.executable", "echo")
    sweep, folder = Sweep(dict(inference="descent"), dict(width=[4])), SweepFolder(tmp_path)
    (run,) = folder.runs(sweep)
    words = ["--inference descent --width 4 --seed 0 --out", "--resume"]
    for options in words:
        job = sweep_module.start_run(run, None)
        assert job.process.wait() == 0
        job.errors.close()
        with job.said as said:
            said.seek(0)
            assert said.read() == f"-m jpc train {options} {run.path} --json\n"
        RunFolder(run.path).begin(make_config({}))
