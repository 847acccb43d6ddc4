"""How the `jpc` command explains itself: its help, and what it says to wrong command lines."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from jaxtyping import install_import_hook
from typer.main import get_command
from typer.testing import CliRunner

import jpc

with install_import_hook("jpc.cli", "beartype.beartype"):
    from jpc._networks import ACTIVATIONS
    from jpc._suggest import did_you_mean
    from jpc.cli import build, config, doctor
    from jpc.cli.app import app


def find(name):
    """A command by its name, such as `jpc data list`."""
    command = get_command(app)
    for part in name.split()[1:]:
        command = command.commands[part]
    return command


def invoke(line):
    return CliRunner(env=dict(COLUMNS="80")).invoke(app, shlex.split(line))


def pages(command, name):
    """The names of a command and of those below it."""
    below = [(n, c) for n, c in getattr(command, "commands", {}).items() if not c.hidden]
    return [name, *(page for n, c in below for page in pages(c, f"{name} {n}"))]


ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINE = re.compile(r"^ {4,}(jpc [a-z].*?)(?:#.*)?$|`(jpc [a-z][^`]*)`", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_on_a_page_exist(page):
    """Commands, and their options. What a page has in a line's place is no matter."""
    for line in (" ".join(found).split() for found in LINE.findall(page.read_text())):
        command = get_command(app)
        for word in line[1:]:
            command = getattr(command, "commands", {}).get(word, command)
        assert not getattr(command, "commands", {}) or line[1:] == ["data"], line
        known = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
        known |= {"--help", "--install-completion"}
        if command.name == "sweep":  # Every option of training may have several values.
            known |= {flag for param in find("jpc train").params for flag in param.opts}
        flags = {word.partition("=")[0] for word in line if word.startswith("--")}
        assert flags <= known, line


class TestHelp:
    @pytest.mark.parametrize("name", pages(get_command(app), "jpc"))
    def test_fits_a_screen_with_an_example_first(self, name):
        lines = invoke(f"{name.removeprefix('jpc')} --help").output.splitlines()
        assert lines[0].startswith(f"Example: {name}")
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 80
        flags = [flag for param in find(name).params for flag in param.opts if flag[:2] == "--"]
        shown = [flag for flag in flags if re.search(rf" {flag}\b", "\n".join(lines))]
        assert shown == flags or "--help-all" in shown

    def test_train_has_groups_in_order(self):
        groups = ["Data", "Network", "Inference", "Optimiser", "Training", "Output"]
        titles = lambda text: re.findall(r"^([A-Z]\w+):$", text, re.MULTILINE)
        common, every = (invoke(f"train {option}").output for option in ("--help", "--help-all"))
        assert titles(common) == groups
        assert titles(every) == [*groups[:2], "Energy", *groups[2:]]
        assert all(f"{entry.flag} " in every for entry in config.ENTRIES)
        assert re.search(r"^\d+ more options: jpc train --help-all$", common, re.MULTILINE)

    def test_version(self):
        assert invoke("--version").output == f"jpc {jpc.__version__}\n"

    def test_names_of_the_options_are_those_of_the_library(self):
        assert tuple(ACTIVATIONS) == config.ACTIVATIONS
        assert tuple(build.OPTIMISERS) == config.OPTIMISERS


class TestStart:
    """In processes of their own."""

    def run(self, code, **environment):
        path = {"PYTHONPATH": str(Path(jpc.__file__).parents[1])}
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command,
            env=os.environ | path | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def test_help_does_not_import_jax(self):
        code = "import sys; sys.argv = ['jpc', 'train', '--help']\nfrom jpc.cli import main\n"
        code += "try: main()\nexcept SystemExit: sys.exit('jax' in sys.modules)"
        found = self.run(code)
        assert (found.returncode, found.stderr) == (0, "")

    def test_completes_options_and_values(self):
        code = "from jpc.cli import main; main()"
        ask = dict(_JPC_COMPLETE="complete_bash")
        found = self.run(code, COMP_WORDS="jpc train --wid", COMP_CWORD="2", **ask)
        assert found.stdout.split() == ["--width"]
        found = self.run(code, COMP_WORDS="jpc train --inference he", COMP_CWORD="3", **ask)
        assert found.stdout.split() == ["heun"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [("rleu", "relu"), ("ReLU", "relu"), ("hard-tanh", "hard_tanh"), ("xyz", None)],
)
def test_suggestions(given, meant):
    assert did_you_mean(given, ACTIVATIONS) == (f" Did you mean {meant}?" if meant else "")


FILES = {
    "list.toml": "[data]\ndataset = ['digits']",
    "dash.toml": "[optimiser]\nlearning-rate = 1",
    "date.toml": "[training]\nseed = 2020-01-01",
    "flag.toml": "[optimiser]\noptimiser = 'adam'",
    "key.toml": "[network]\nwdith = 3",
    "negative.toml": "[training]\nepochs = -1",
    "other.toml": "[training]\nlearning_rate = 1",
    "table.toml": "[netwrok]\nwidth = 3",
    "tables.toml": "[[data]]\ndataset = 'digits'",
    "text.toml": "[network]\nwidth = '3'",
    "top.toml": "width = 3",
    "twice.toml": "[data]\n[data]",
    "value.toml": "[inference]\nmethod = 'huen'",
    "wrong.toml": "[network",
    "file.txt": "mine",
    "full/notes.txt": "mine",
    "folder.toml/notes.txt": "mine",
    "mark.toml": "\ufeff[network]\nwdith = 3",
    "run/config.toml": "[network]\nwidth = 3",
    "half/config.toml": "[network]\nwidht = 3",
}
WRONG = {
    "trian": "No such command 'trian'. Did you mean 'train'?",
    "--vresion": "no option --vresion. Did you mean --version?",
    "train --widht 3": "no option --widht. Did you mean --width?",
    "train --learning_rate 1": "Did you mean --learning-rate?",
    "train --no-biass": "Did you mean --no-bias?",
    "train -x": "no option -x.",
    "train --depth": "'--depth' requires an argument",
    "train --quiet=3": "'--quiet' does not take a value",
    "train --depth two": "--depth must be a whole number, got 'two'",
    "train --depth 2.5": "--depth must be a whole number, got '2.5'",
    "train --depth -1": "--depth must be a whole number of at least 2, got -1",
    "train --width 1e3": "--width must be a whole number, got '1e3'",
    "train --learning-rate 1,5": "--learning-rate must be a number, got '1,5'",
    "train --learning-rate nan": "--learning-rate must be a number above 0, got nan",
    "train --learning-rate inf": "--learning-rate must be a number above 0, got inf",
    "train --seed 99999999999": "--seed must be below 2.32",
    "train --width 2147483648": "--width must be below 2.31, got 2147483648",
    "train --seeds two": "'--seeds': it must be a whole number of at least 1, got 'two'",
    "train --overwrite": "--overwrite goes with --out FOLDER",
    "sweep --width 8,16 --jobs 0": "'--jobs': it must be a whole number of at least 1, got '0'",
    'train --dataset ""': "--dataset is one of digits, .* or a path, not ''",
    "train --batch-size 0": "--batch-size must be a whole number of at least 1",
    "train --task discriminativ": "Did you mean discriminative?",
    "train --activation rleu": "Did you mean relu?",
    "train --inference huen": "Did you mean heun?",
    "train --optimiser ADAM": "Did you mean adam?",
    "train --network vgg-5": "Did you mean vgg5?",
    "train --precision 64": "--precision is one of float32, float64, not '64'",
    "train --inference heun --steps 3": "is for --inference equilibrium, descent",
    "train --network vgg5 --width 3": "is for --network mlp",
    "train --chords 0 --steps 0": "leaves nothing to do",
    "train --devices 3": "give a multiple",
    "train digits": "digits is a data set, not a file: jpc train --dataset digits",
    "train none.toml": "none.toml cannot be read: No such file",
    "train folder.toml": "folder.toml cannot be read: Is a directory",
    "train wrong.toml": "wrong.toml is not TOML: Expected",
    "train twice.toml": "twice.toml is not TOML",
    "train key.toml": "key.toml: Unknown key 'wdith' in .network.: .* Did you mean width?",
    "train mark.toml": "mark.toml: .* Did you mean width?",
    "train dash.toml": "dash.toml: .* Did you mean learning_rate?",
    "train other.toml": "other.toml: .* Write learning_rate in .optimiser.",
    "train flag.toml": "flag.toml: .* Write kind in .optimiser.",
    "train top.toml": "top.toml: .* Write width in .network.",
    "train table.toml": "table.toml: .* Did you mean network?",
    "train tables.toml": "tables.toml: data is a table",
    "train text.toml": "text.toml: --width must be a whole number, got '3'",
    "train date.toml": "date.toml: --seed must be a whole number",
    "train list.toml": "list.toml: --dataset must be a name",
    "train negative.toml": "negative.toml: --epochs must be a whole number of at least 1",
    "train value.toml": "value.toml: .* Did you mean heun?",
    "train key.toml top.toml": "unexpected extra argument",
    "train --out file.txt": "--out file.txt is a file",
    "train --out full": "--out full has files in it that are not of a run",
    "train --out run": "--out run has a run in it",
    "train --resume none": "none is not the folder of a run",
    "train --resume half": "half/config.toml: .* Did you mean width?",
    "train --resume run --out x": "--resume RUN goes without",
    "train --resume run --width 4": "resumed as it was begun",
    "eval": "Missing argument 'RUN'",
    "eval file.txt": "file.txt is not the folder of a run",
    "eval run": "run has nothing to evaluate",
    "compare run none": "none is not the folder of a run",
    "compare run --plot": "'--plot' requires an argument",
    "compare run --report file.txt": "--report file.txt must end in .html",
    "data describe digits --picture file.txt": "--picture file.txt must end in .png",
    "reproduce fig1 --minutes soon": "Invalid value for '--minutes'",
    "data lst": "Did you mean 'list'?",
    "data where mnits": "Did you mean mnist?",
    "data fetch": "Missing argument 'NAME'",
    "doctor --jsn": "Did you mean --json?",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("wrong")
    for name, text in FILES.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    return path


@pytest.mark.parametrize("line", WRONG)
def test_wrong_lines_get_one_line(line, folder, monkeypatch):
    """And nothing is changed."""
    monkeypatch.chdir(folder)
    result = invoke(line)
    assert result.exit_code == 2, result.exception
    (said,) = result.stderr.splitlines()
    assert said.startswith("jpc: ")
    assert re.search(WRONG[line].replace("?", r"\?"), said), said
    assert result.stdout == ""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {str(path.relative_to(folder)): path.read_text() for path in files} == FILES


class TestDoctor:
    def test_nothing_is_missing(self, monkeypatch):
        monkeypatch.setattr(doctor, "_idle_gpu", lambda platform: False)
        found, advice = doctor.examine(dict(mnist="/data"))
        assert found["data"] == dict(mnist="/data")
        assert found["extras"] == "train"
        assert not any("mnist" in line or "pip" in line for line in advice)

    def test_what_is_missing_has_a_remedy(self, monkeypatch):
        monkeypatch.setattr(doctor, "_is_there", lambda module: module != "pooch")
        monkeypatch.setattr(doctor, "_idle_gpu", lambda platform: True)
        page = doctor.examine(dict(mnist=None)).page()
        assert "train, without pooch" in page
        assert "pooch: pip install -e '.[train]'" in page
        assert "pip install 'jax[cuda13]'" in page
        assert "mnist: jpc data fetch mnist" in page

    def test_no_device_is_said(self, monkeypatch):
        def fail():
            raise RuntimeError("Unable to initialize backend")

        monkeypatch.setattr(doctor, "machine", fail)
        assert "JAX finds no device" in doctor.examine({}).page()

    def test_info_is_the_same(self):
        said = invoke("doctor --json").stdout
        assert json.loads(said)["jpc"] == jpc.__version__
        assert invoke("info --json").stdout == said
