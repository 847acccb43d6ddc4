"""Numbers on the pages of the documentation are those of the files they name.

`numbers_of_pages.py` says how. The pages of docs/results are what `--draw` writes.
"""

import functools as ft
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numbers_of_pages
import pytest

from jpc import bench, experiments

DOCS = numbers_of_pages.DOCS
RESULTS = DOCS / "results"
COMMENT = re.compile(
    r"^ *<!-- (some )?from ([^:>]+?)(?:: (\w+))? -->\n\n?(.*?)(?:\n\n|\Z)", re.M | re.S
)
NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e-?\d+)?")
TOLD = re.compile(r"\d+\.\d+(?: ± \d+\.\d+)?|\d+°")


class Claim(NamedTuple):
    """A block of a page, and the files and the function that its numbers follow from."""

    page: str
    some: bool
    files: tuple[Path, ...]
    way: str | None
    text: str


def claims() -> Iterator[Claim]:
    for page in sorted(DOCS.rglob("*.md")):
        for some, files, way, text in COMMENT.findall(page.read_text()):
            paths = tuple(DOCS / name for name in files.split(", "))
            yield Claim(page.relative_to(DOCS).as_posix(), bool(some), paths, way or None, text)


CLAIMS = list(claims())
EVERY = pytest.mark.parametrize(
    "claim", CLAIMS, ids=lambda c: f"{c.page}:{c.way or c.files[0].name}"
)


def cells(table: str) -> str:
    """A table without its head and its first column; "-" is a number that is not there."""
    rows = [line.strip().strip("|").split("|")[1:] for line in table.splitlines()[2:]]
    return "\n".join(" | ".join(cell.strip() for cell in row) for row in rows)


def printed(text: str) -> list[str | None]:
    found = re.findall(rf"{NUMBER.pattern}|(?<=\| )-(?= \||$)|^-(?= \|)", text, re.MULTILINE)
    return [None if token == "-" else token for token in found]


def agrees(token: str | None, value: float | None) -> bool:
    """Whether a number is printed as it is, rounded to the digits that are printed."""
    if token is None or value is None:
        return token is value
    told = Decimal(token.replace(",", ""))
    half = Decimal(1).scaleb(int(told.as_tuple().exponent)) / 2
    return abs(float(told) - value) <= float(half) * (1 + 1e-6) + 1e-12 * abs(value)


def missing(values: list[float | None], tokens: list[str | None]) -> list[float | None]:
    """The first value that is not among the numbers after the one before it."""
    left = iter(tokens)
    for value in values:
        if not any(agrees(token, value) for token in left):
            return [value]
    return []


@ft.cache
def values_of(way: str, files: tuple[Path, ...]) -> list[float | None]:
    function: Any = getattr(numbers_of_pages, way)
    return list(function(*map(numbers_of_pages.rows_of, files)))


def wrong(claim: Claim, text: str) -> list:
    """What a text says that does not follow from the files of a claim."""
    shown = cells(text) if text.lstrip().startswith("|") else text
    if claim.way is None:
        known = " ".join(path.read_text() for path in claim.files)
        told = TOLD.findall(shown)
        return [number for number in told if number not in known] if told else ["no number"]
    values, tokens = values_of(claim.way, claim.files), printed(shown)
    if claim.some or shown is text:
        return missing(values, tokens)
    return [pair for pair in zip(tokens, values, strict=True) if not agrees(*pair)]


@EVERY
def test_numbers_are_those_of_their_files(claim):
    assert wrong(claim, claim.text) == []


@EVERY
def test_another_number_is_noticed(claim):
    """One more in the last digit of every number."""
    more = lambda found: found[0][:-1] + str((int(found[0][-1]) + 1) % 10)
    other = re.sub(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?\b", more, claim.text)
    assert wrong(claim, other) != []


@pytest.mark.parametrize("name", experiments.FIGURES)
def test_pages_of_figures_are_drawn_from_what_was_measured(name, tmp_path, monkeypatch):
    check_drawn(name, tmp_path, monkeypatch, RESULTS / "reproduction", experiments.reproduce)


@pytest.mark.parametrize("name", ["deep", "regime"])
def test_pages_of_tables_are_drawn_from_what_was_measured(name, tmp_path, monkeypatch):
    check_drawn(name, tmp_path, monkeypatch, RESULTS / "bench", bench.bench)


def check_drawn(name, tmp_path, monkeypatch, folder, draw):
    """Without the pictures, which take long and depend on fonts, and without what was not run:
    a network may be declared before it is trained.
    """
    report = f"{draw.__module__.rpartition('.')[0]}._report._picture"
    monkeypatch.setattr(report, lambda kind, found, path: f"![{path.name}]({path.name}.png)")
    (tmp_path / "cells.jsonl").write_bytes((folder / "cells.jsonl").read_bytes())
    drawn = draw(name, "full", tmp_path, run=False)
    found = drawn.read_text().replace(str(tmp_path), f"docs/results/{folder.name}")
    said = (folder / f"{name}.md").read_text()
    assert found.partition("Not run:")[0] == said.partition("Not run:")[0]
    assert drawn.with_suffix(".csv").read_text() == (folder / f"{name}.csv").read_text()
