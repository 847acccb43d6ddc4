"""Pages of HTML that are well-formed XML too, and need nothing but themselves: no scripts, no
network. All text is escaped here.
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .setting import Picture
from .svg import Drawing
from .text import escape

# A browser runs no script and loads nothing, whatever is in the page.
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; img-src data:\" />"
)
_REFRESH = '<meta http-equiv="refresh" content="10" />'
_LIGHT = """--ink: #1d2330; --soft: #5c6575; --page: #f5f6f8; --card: #ffffff;
  --edge: #dfe3ea; --bad: #c0392b; --cell: #2f6fdc; --on: #ffffff;"""
_DARK = """--ink: #e6e9ef; --soft: #9aa4b5; --page: #12151b; --card: #1b2029;
  --edge: #303848; --bad: #ff8a7a; --cell: #6ea0ff; --on: #0d1117;"""
_STYLE = (
    f":root {{ color-scheme: light dark; {_LIGHT} }}\n"
    f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}"
    """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 1.2rem 1rem 3rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .2rem 0; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: .8rem 0 .3rem; }
p { margin: .3rem 0 .6rem; color: var(--soft); max-width: 72ch; }
figure p, small { font-size: .82rem; line-height: 1.35; color: var(--soft); }
figure p { margin: .4rem 0 0; }
td small, .numbers small { display: block; }
.said { color: var(--ink); }
.cards, .numbers { display: grid; gap: .8rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)); }
.numbers { margin-top: .8rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 165px), 1fr)); }
.numbers b { display: block; font-size: 1.45rem; line-height: 1.2; }
figure, .card { margin: 0; padding: .8rem; background: var(--card); border: 1px solid
  var(--edge); border-radius: 10px; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: .3rem; }
svg { display: block; width: 100%; height: auto; color: var(--ink); }
svg text { fill: var(--soft); font-size: 12px; }
svg .cell { fill: var(--cell); }
svg .on { fill: var(--on); }
svg .soft { fill: var(--edge); }
svg .mark { stroke: var(--ink); }
.grid { stroke: var(--edge); stroke-width: 1; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem .9rem; font-size: .85rem; }
.legend i { display: inline-block; width: .8rem; height: .25rem; margin-right: .35rem;
  vertical-align: middle; border-radius: 2px; }
.pictures { display: grid; gap: .6rem;
  grid-template-columns: repeat(auto-fill, minmax(76px, 1fr)); }
.pictures.pairs {
  grid-template-columns: repeat(auto-fill, minmax(76px, 1fr) minmax(76px, 1fr)); }
.pictures div { text-align: center; font-size: .8rem; line-height: 1.2; }
.pictures img { width: 100%; image-rendering: pixelated; border-radius: 4px; display: block;
  margin-bottom: .2rem; }
.wrong { color: var(--bad); font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; width: 100%; overflow-wrap: normal; }
td, th { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top;
  border-bottom: 1px solid var(--edge); }
tr:last-child td { border-bottom: 0; }
@media (max-width: 500px) { svg text { font-size: 15px; } h1 { font-size: 1.3rem; } }
@media print {
  @page { margin: 14mm; }
  body { max-width: none; padding: 0; background: none; font-size: 12px;
    print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .cards { grid-template-columns: 1fr 1fr; }
  figure, .card, .numbers > div, tr, p { break-inside: avoid; }
  h2 { margin-top: 1.2rem; }
  h2, h3, section > p { break-after: avoid; }
  .cards > :first-child { break-before: avoid; }
}
"""
)


class Number(NamedTuple):
    """A number that is worth a large print: what it is, in how many words it takes."""

    name: str
    value: str
    meaning: str


class Part(NamedTuple):
    """A section: its title, what it says, its figures and what is beside them, and what else it
    shows.
    """

    title: str
    words: str = ""
    drawings: Sequence[Drawing] = ()
    beside: str = ""
    more: str = ""

    def __str__(self) -> str:
        return section(self.title, self.words, figures(self.drawings, self.beside), self.more)


def page(title: str, header: str, sections: Iterable[str], *, reload: bool = False) -> str:
    """A whole page. One that is to `reload` asks the browser to load it again every ten
    seconds.
    """
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8" />{_POLICY}'
        f'<meta name="viewport" content="width=device-width, initial-scale=1" />'
        f"{_REFRESH if reload else ''}<title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body>"
        f"<header>{header}</header>{''.join(sections)}</body></html>\n"
    )


def heading(title: str, words: str) -> str:
    return f"<h1>{escape(title)}</h1><p>{escape(words)}</p>"


def numbers(entries: Sequence[Number]) -> str:
    cells = "".join(
        f'<div class="card"><small>{escape(name)}</small><b>{escape(value)}</b>'
        f"<small>{escape(meaning)}</small></div>"
        for name, value, meaning in entries
    )
    return f'<div class="numbers">{cells}</div>' if entries else ""


def section(title: str, *content: str) -> str:
    whole = "".join(content)
    return f"<section><h2>{escape(title)}</h2>{whole}</section>" if whole else ""


def say(text: str) -> str:
    """A sentence that matters."""
    return f'<p class="said">{escape(text)}</p>' if text else ""


def note(text: str) -> str:
    return f"<p>{escape(text)}</p>" if text else ""


def figures(drawings: Sequence[Drawing], *more: str) -> str:
    shown = "".join([*(drawing.figure() for drawing in drawings), *more])
    return f'<div class="cards">{shown}</div>' if shown else ""


def pairs(entries: Mapping[str, Any], meanings: Mapping[str, str] | None = None) -> str:
    """A card with a name and a value in each row, and what it means below the name."""
    meanings = meanings or {}
    rows = "".join(
        f"<tr><td>{escape(name)}{_small(meanings.get(name, ''))}</td>"
        f"<td>{escape(word(value))}</td></tr>"
        for name, value in entries.items()
    )
    return f'<div class="card scroll"><table>{rows}</table></div>'


def _small(text: str) -> str:
    return f"<small>{escape(text)}</small>" if text else ""


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A card with a row of names and rows of cells."""
    cells = lambda row, tag: "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    head = f"<tr>{cells(names, 'th')}</tr>"
    return f'<div class="card scroll"><table>{head}{body}</table></div>'


def gallery(pictures: Sequence[Picture], *, pairs: bool = False) -> str:
    """Pictures with their captions; pairs stay side by side, however wide the page is."""
    cells = "".join(
        f"<div{'' if picture.right else ' class=' + chr(34) + 'wrong' + chr(34)}>"
        f'<img alt="" src="data:image/png;base64,{encode(picture.image)}" />'
        f"{escape(picture.caption)}</div>"
        for picture in pictures
    )
    kind = "card pictures pairs" if pairs else "card pictures"
    return f'<div class="{kind}">{cells}</div>' if cells else ""


def encode(image: np.ndarray) -> str:
    """A PNG of an image of shape (channels, height, width), in base64."""
    from PIL import Image  # noqa: PLC0415

    pixels = np.round(255 * np.moveaxis(image, 0, -1)).astype(np.uint8)
    pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return base64.b64encode(buffer.getvalue()).decode()


def word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
