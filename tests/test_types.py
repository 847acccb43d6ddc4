"""What a type checker says of calls of ours, as an installed package."""

import json
import subprocess
import sys
from pathlib import Path

import jpc

CALLS = Path(__file__).with_name("typed_calls.py")
PACKAGE = Path(jpc.__file__).parent


def test_package_says_that_it_has_types():
    assert (PACKAGE / "py.typed").is_file()


def test_wrong_calls_are_found_and_right_ones_are_not(tmp_path):
    """Against the comments in the file."""
    (tmp_path / "calls.py").write_text(CALLS.read_text())
    settings = dict(typeCheckingMode="standard", extraPaths=[str(PACKAGE.parent)])
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--project", str(tmp_path), "--outputjson"]
    command += ["--pythonpath", sys.executable]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(answer.stdout)["generalDiagnostics"]
    lines = enumerate(CALLS.read_text().splitlines())
    wrong = {number for number, line in lines if "# wrong" in line}
    errors = [problem for problem in found if problem["severity"] == "error"]
    assert {problem["range"]["start"]["line"] for problem in errors} == wrong, errors
