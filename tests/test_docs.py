"""The code on the pages of the documentation about training, run as it is printed."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page):
    text = (DOCS / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run(page):
    names = {}
    for block in blocks(page):
        exec(block, names)
    return names


def test_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run("training.md")
    assert names["history"][-1]["loss"] < names["history"][0]["loss"]
    assert [record["epoch"] for record in names["resumed"].history] == [1, 2, 3, 4]
    assert len(capsys.readouterr().out.splitlines()) == len(names["history"]) + 1


def test_devices():
    names = run("devices.md")
    losses = [record["loss"] for record in names["fitted"].history]
    assert losses == sorted(losses, reverse=True)
