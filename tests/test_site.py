"""The site holds together: navigation, links and the pages of the API, without building it."""

import importlib
import inspect
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")


def named(entries):
    for entry in entries:
        for where in entry.values():
            yield from [where] if isinstance(where, str) else named(where)


def prose(page):
    """A page without its code, where brackets and parentheses mean something else."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page):
    """Those of the headings, as the site and the code hosts make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", title.lower()) for title in titles)
    return {re.sub(r"\s+", "-", word.strip()) for word in words}


def test_navigation_names_every_page_once():
    site = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    pages = [page.relative_to(DOCS).as_posix() for page in PAGES]
    assert sorted(named(site["nav"])) == sorted(pages)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: p.name)
def test_links_point_to_what_exists(page):
    """Pages, pictures and results. A link from a page leaves docs/ only in README.md: the site
    has nothing else.
    """
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert page.parent == ROOT or target.is_relative_to(DOCS), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: p.name)
def test_no_list_by_accident(page):
    """A number with a full stop that happens to begin a line becomes a list item."""
    lines = prose(page).splitlines()
    starts = [re.match(r"\s*\d+\. ", line) for line in lines]
    for before, line, starts_list in zip(lines, lines[1:], starts[1:], strict=False):
        assert not starts_list or not before.strip() or re.match(r"\s*(\d+\.|  )", before), line


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: p.name)
def test_programs_that_a_page_names_are_there(page):
    """Those that make its numbers, say."""
    named = r"\b(?:benchmarks|examples|tests|jpc|docs)/[\w/]+\.(?:py|csv|png|jsonl)\b"
    for path in re.findall(named, page.read_text()):
        assert any((base / path).is_file() for base in (ROOT, DOCS, page.parent)), path
    for path in re.findall(r"(?<![\w/])results/[\w/-]+\.(?:csv|png|jsonl)\b", page.read_text()):
        assert (DOCS / path).is_file(), path


@pytest.mark.parametrize("module", ["jpc", "jpc.data", "jpc.bench", "jpc.experiments"])
def test_every_public_name_is_on_one_page_of_the_api(module):
    text = "\n".join(page.read_text() for page in PAGES)
    found = re.findall(rf"^::: {re.escape(module)}\.(\w+)$", text, re.MULTILINE)
    package = importlib.import_module(module)
    names = [name for name in dir(package) if not name.startswith("_")]
    public = {name for name in names if not inspect.ismodule(getattr(package, name))}
    assert sorted(found) == sorted(public - {"TYPE_CHECKING", "lazily"})


@pytest.mark.parametrize("name", ["choose.md", "deep.md", "faq.md", "index.md"])
def test_numbers_are_those_of_the_pages_they_are_from(name):
    """These pages measure nothing. What has a decimal point is on a page that does."""
    retold = {"choose.md", "deep.md", "faq.md", "index.md", "glossary.md"}
    pages = [page for page in PAGES if page.name not in retold] + [ROOT / "pyproject.toml"]
    measured = " ".join(page.read_text() for page in pages)
    number = r"(?<![\d.])\d+\.\d+(?:e-\d+)?"
    for pattern in (number, rf"{number} ± [\d.]+\b"):
        told = set(re.findall(pattern, prose(DOCS / name)))
        assert told <= set(re.findall(pattern, measured))
