"""Numbers on the pages of the documentation are those of the files they name.

`numbers_of_pages.py` says how, with the other `numbers_of_*.py`. The pages of docs/results are
what `--draw` writes.
"""

import functools as ft
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numbers_of_costs
import numbers_of_pages
import numbers_of_reproduction
import numbers_of_rules
import numbers_of_variants
import pytest

from jpc import bench, experiments

DOCS = numbers_of_pages.DOCS
RESULTS = DOCS / "results"
MODULES = (
    numbers_of_pages,
    numbers_of_costs,
    numbers_of_reproduction,
    numbers_of_rules,
    numbers_of_variants,
)
WAYS: dict[str, Any] = {name: way for module in MODULES for name, way in vars(module).items()}
COMMENT = re.compile(r"^ *<!-- (some )?from ([^:>]+): (\w+) -->\n\n?(.*?)(?:\n\n|\Z)", re.M | re.S)
NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?")
DECIMAL = re.compile(r"\d\.\d|\de[-+]?\d")
TABLE = re.compile(r"(<!-- .*? -->)?\s*^( *\|.*(?:\n *\|.*)+)", re.M)
# Tables with decimal numbers that no file has, by their page and their head.
FREE = {
    ("cite.md", "| you use | cite |"): "numbers of preprints",
    (
        "diagnose.md",
        "| symptom | likely cause | what to do |",
    ): "step sizes, and bounds in the code",
    (
        "learn.md",
        "| $p$ | $z_1$ | gradient of the first weight, over $p$ | of the second, over $p$ |",
    ): "what the code of the page makes, in test_docs.py",
}


class Claim(NamedTuple):
    """A block of a page, and the files and the function that its numbers follow from."""

    page: str
    some: bool
    files: tuple[Path, ...]
    way: str
    text: str


PAGES = {page.relative_to(DOCS).as_posix(): page.read_text() for page in DOCS.rglob("*.md")}
PAGES |= {"contribute.md": (DOCS.parent / "CONTRIBUTING.md").read_text()}


def claims() -> Iterator[Claim]:
    for page, whole in sorted(PAGES.items()):
        for some, files, way, text in COMMENT.findall(whole):
            paths = tuple(DOCS / name for name in files.split(", "))
            yield Claim(page, bool(some), paths, way, text)


CLAIMS = list(claims())
EVERY = pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: f"{c.page}:{c.way}")


def shown(text: str) -> str:
    """A table without its head, its first column, and code; or the text as it is."""
    if not text.lstrip().startswith("|"):
        return text
    body = [re.sub(r"`[^`]*`|\$[^$]*\$", "", line.strip()) for line in text.splitlines()[2:]]
    rows = [line.strip("|").split("|")[1:] for line in body]
    return "\n".join(" | ".join(cell.strip() for cell in row) for row in rows)


def printed(text: str) -> list[str | None]:
    """The numbers of a table; "-" is one that is not there."""
    found = re.findall(rf"{NUMBER.pattern}|(?<=\| )-(?= \||$)|^-(?= \|)", text, re.MULTILINE)
    return [None if token == "-" else token for token in found]


def agrees(token: str | None, value: float | None) -> bool:
    """Whether a number is printed as it is, rounded to the digits that are printed."""
    if token is None or value is None:
        return token is value
    told = Decimal(token.replace(",", ""))
    half = Decimal(1).scaleb(int(told.as_tuple().exponent)) / 2
    return abs(float(told) - value) <= float(half) * (1 + 1e-6) + 1e-12 * abs(value)


def told(values: list[float | None], text: str) -> list[re.Match]:
    """Where a text has values, each after the one before it, up to the first that is missing."""
    left, found = NUMBER.finditer(text), []
    for value in values:
        place = next((match for match in left if agrees(match.group(), value)), None)
        if place is None:
            break
        found.append(place)
    return found


@ft.cache
def values_of(way: str, files: tuple[Path, ...]) -> list[float | None]:
    return list(WAYS[way](*map(numbers_of_pages.rows_of, files)))


def in_part(claim: Claim) -> bool:
    """Whether a claim has other numbers, too: a paragraph, or some of a table."""
    return claim.some or shown(claim.text) is claim.text


def wrong(claim: Claim, text: str) -> list:
    """What a shown text says that does not follow from the files of a claim."""
    values = values_of(claim.way, claim.files)
    if in_part(claim):
        return values[len(told(values, text)) :]
    return [pair for pair in zip(printed(text), values, strict=True) if not agrees(*pair)]


@EVERY
def test_numbers_are_those_of_their_files(claim):
    assert wrong(claim, shown(claim.text)) == []


@EVERY
def test_another_number_is_noticed(claim):
    """Two more in the last digit of one of them: one more may be what is halfway rounds to."""
    text = shown(claim.text)
    found = told(values_of(claim.way, claim.files), text) if in_part(claim) else []
    for match in found or NUMBER.finditer(text):
        last = match.start() + len(match.group().partition("e")[0]) - 1
        other = f"{text[:last]}{(int(text[last]) + 2) % 10}{text[last + 1 :]}"
        assert wrong(claim, other) != [], match.group()


def test_every_comment_names_a_way():
    begin = re.compile(r"^ *<!-- .*from ", re.MULTILINE)
    said = [line for whole in PAGES.values() for line in begin.findall(whole)]
    assert len(said) == len(CLAIMS)


def unchecked(text: str) -> list[str]:
    """The heads of tables with decimal numbers and no file."""
    tables = [(said, table) for said, table in TABLE.findall(text) if "from results/" not in said]
    lines = [table.splitlines() for _, table in tables]
    return [head.strip() for head, *body in lines if len(DECIMAL.findall(" ".join(body))) >= 3]


def test_tables_of_measurements_name_their_files():
    mine = [page for page in PAGES if page.split("/")[0] not in ("examples", "results", "api")]
    assert {(page, head) for page in mine for head in unchecked(PAGES[page])} == set(FREE)


def test_a_table_without_a_file_is_noticed():
    table = "| steps | error |\n|---|---|\n| 1 | 0.5 |\n| 2 | 0.25 |\n| 3 | 0.125 |\n"
    assert unchecked(f"# Page\n\nMeasured:\n\n{table}\nText.") == ["| steps | error |"]
    assert unchecked(f"<!-- from results/name.csv: way -->\n\n{table}") == []


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
