"""Charts as SVG: no scripts, nothing from elsewhere, and the colours of the page they are on. As
files they bring their own.
"""

import colorsys
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from .text import escape

Number: TypeAlias = float | int

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 26, 40
_INSET = 8  # Between the edge and the first point, so that a mark is not on a tick's name.
_MOST_NAMES = 8
_SMALLEST = 1e-9
_SAME = 1e-3  # Values that differ by less, in relative terms, are drawn as a flat line.
_LINE = 18  # Between the lines of a legend in a file.
_DARK_CELL = 0.55
_LETTER = 8.4  # How wide a letter is on a phone, where text is larger.
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_FILE_STYLE = """
text { fill: #3c4454; font: 12px sans-serif; } .grid { stroke: #dfe3ea; stroke-width: 1; }
.cell { fill: #2f6fdc; } .on { fill: #ffffff; } .soft { fill: #dfe3ea; } .mark { stroke: #1d2330; }
"""


class Line(NamedTuple):
    """A line of a chart, by its name and its points; a `None` is a gap in it. `low` and `high`
    are the edges of a band around it.
    """

    name: str
    xs: Sequence[Number]
    ys: Sequence[Number | None]
    low: Sequence[Number | None] = ()
    high: Sequence[Number | None] = ()


class Mark(NamedTuple):
    """A point that is made much of, and what it is."""

    x: Number
    y: Number
    text: str


class Axis(NamedTuple):
    """From values to pixels, with the values that are marked on the way."""

    low: Number
    high: Number
    ticks: list[Number]
    log: bool = False

    def place(self, value: Number, start: Number, stop: Number) -> float:
        low, high, value = map(self._scale, (self.low, self.high, value))
        return start + (stop - start) * (value - low) / (high - low)

    def up_to(self, most: float) -> "Axis":
        """No further than what there can be."""
        ticks = [tick for tick in self.ticks if tick <= most]
        return self._replace(high=min(self.high, most), ticks=ticks)

    def show(self, tick: Number) -> str:
        if not self.log or (min(self.ticks) > 9e-5 and max(self.ticks) < 1.1e4):
            return f"{tick + 0.0:.6g}"  # There is no -0.
        first, power = f"{tick:.0e}".split("e")
        return f"{first}·10".removeprefix("1·") + f"{int(power)}".translate(_SUPERSCRIPTS)

    def _scale(self, value: Number) -> Number:
        return math.log10(value) if self.log else value


class Drawing(NamedTuple):
    """A picture with a title, the colours and names of what is in it, and a word about it."""

    title: str
    drawn: str
    size: tuple[Number, Number] = (WIDTH, HEIGHT)
    legend: Sequence[tuple[str, str]] = ()
    note: str = ""

    def figure(self) -> str:
        """For a page."""
        title, note = escape(self.title), escape(self.note)
        names = "".join(
            f'<span><i style="background:{shade}"></i>{escape(name)}</span>'
            for shade, name in self.legend
        )
        legend = f'<div class="legend">{names}</div>' if names else ""
        return (
            f"<figure><figcaption>{title}</figcaption>"
            f'<svg viewBox="0 0 {self.size[0]:g} {self.size[1]:g}" role="img" '
            f'aria-label="{title}">{self.drawn}</svg>{legend}'
            f"{f'<p>{note}</p>' if note else ''}</figure>"
        )

    def file(self) -> str:
        """By itself, for a paper or a talk."""
        width, height = self.size
        rows = [
            f'<rect x="{LEFT}" y="{y - 4:g}" width="14" height="4" fill="{shade}" />'
            f'<text x="{LEFT + 20}" y="{y + 2:g}">{escape(name)}</text>'
            for y, (shade, name) in _lines(height + 12, self.legend)
        ]
        box = f"0 0 {width:g} {height + _LINE * len(rows) + 6:g}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif">'
            f"<title>{escape(self.title)}</title><style>{_FILE_STYLE}</style>"
            f"{self.drawn}{''.join(rows)}</svg>\n"
        )

    @property
    def name(self) -> str:
        """That of its file."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())


def _lines(y: Number, legend: Sequence[tuple[str, str]]) -> list[tuple[Number, tuple[str, str]]]:
    return [(y + _LINE * i, entry) for i, entry in enumerate(legend)]


def chart(
    title: str,
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    log: bool = False,
    log_x: bool = False,
    most: float = math.inf,
    mark: Mark | None = None,
    note: str = "",
) -> list[Drawing]:
    """Lines over an axis, or nothing if there is nothing to draw. On a logarithmic axis what is
    not positive, or tiny beside the largest value, is left out. Values can be `most` at most.
    """
    values = [y for line in lines for y in (*line.ys, *line.low, *line.high) if y is not None]
    floor = _SMALLEST * max(filter(math.isfinite, values), default=0.0)
    lines = [_visible(line, max(floor, 0.0) if log else -math.inf, log_x) for line in lines]
    ys = [y for line in lines for y in (*line.ys, *line.low, *line.high) if y is not None]
    xs = [x for line in lines for x, y in zip(line.xs, line.ys, strict=True) if y is not None]
    if not xs:
        return []
    x_axis = log_axis(xs, tight=True) if log_x else linear_axis(xs, whole=x_label == "epoch")
    y_axis, number = axis(ys, log).up_to(most), len(lines)
    bands = [_band(line, x_axis, y_axis, colour(i, number)) for i, line in enumerate(lines)]
    paths = [_path(line, x_axis, y_axis, colour(i, number)) for i, line in enumerate(lines)]
    drawn = [*_grid(x_axis, y_axis), *_labels(x_label, y_label), *bands, *paths]
    legend = _legend([line.name for line in lines])
    if mark is not None:
        drawn.append(_ring(mark, x_axis, y_axis))
        legend = legend or [(colour(0, 1), lines[0].name)]
        legend = [*legend, ("currentColor", mark.text)]
    return [Drawing(title, "".join(drawn), legend=legend, note=note)]


def scatter(
    title: str, xs: Sequence[Number], ys: Sequence[Number], x_label: str, y_label: str, note: str
) -> list[Drawing]:
    """A point for each pair, and the line on which both are the same."""
    axis, shade = linear_axis([*xs, *ys]), colour(0, 1)
    ends = [_spot(x, x, axis, axis) for x in (axis.low, axis.high)]
    spots = [_spot(x, y, axis, axis) for x, y in zip(xs, ys, strict=True)]
    points = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" />' for x, y in spots]
    drawn = [
        *_grid(axis, axis),
        *_labels(x_label, y_label),
        f'<polyline class="mark" fill="none" points="{_joined(ends)}" />',
        f'<g fill="{shade}" fill-opacity="0.6">{"".join(points)}</g>',
    ]
    return [Drawing(title, "".join(drawn), note=note)]


def _visible(line: Line, floor: float, log_x: bool) -> Line:
    """With a gap in place of what cannot be drawn."""
    drawable = lambda y: y if y is not None and math.inf > y > floor else None
    at = [i for i, x in enumerate(line.xs) if x > 0 or not log_x]
    low, high = ([drawable(edge[i]) for i in at] if edge else [] for edge in line[3:])
    return Line(line.name, [line.xs[i] for i in at], [drawable(line.ys[i]) for i in at], low, high)


def axis(values: Sequence[Number], log: bool) -> Axis:
    return log_axis(values) if log else linear_axis(values)


def linear_axis(values: Sequence[Number], *, whole: bool = False) -> Axis:
    """About five round numbers, whole ones if asked for."""
    low, high = min(values), max(values)
    if high - low <= _SAME * max(abs(low), abs(high), 1e-9):
        half = 0.5 if low == high else _SAME * max(abs(low), abs(high))
        low, high = low - half, high + half
    size = _round_up((high - low) / 5)
    size = max(1.0, size) if whole else size
    first, last = math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9)
    ticks = [i * size for i in range(first, last + 1)]
    return Axis(low, high, ticks) if whole else _widen(low, high, ticks)


def _widen(low: Number, high: Number, ticks: list[Number]) -> Axis:
    margin = 0.04 * (high - low)
    return Axis(low - margin, high + margin, ticks)


def _round_up(size: Number) -> float:
    """To 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= size * (1 - 1e-9))


def log_axis(values: Sequence[Number], *, tight: bool = False) -> Axis:
    """Powers of ten, at most about six of them, or 1, 2 and 5 times these within a decade. From
    the first to the last of them, unless it is to be tight.
    """
    least, most = min(values), max(values)
    low, high = math.floor(math.log10(least) + 1e-9), math.ceil(math.log10(most) - 1e-9)
    high = max(high, low + 1)
    if most < 10 * least:
        ticks = [m * 10.0**i for i in range(low - 1, high + 1) for m in (1, 2, 5)]
        first = max(i for i, tick in enumerate(ticks) if tick <= least * (1 + 1e-9))
        last = min(i for i, tick in enumerate(ticks) if tick >= most * (1 - 1e-9))
        ticks = ticks[first : max(last, first + 1) + 1]
    else:
        ticks = [10.0**i for i in range(low, high + 1, math.ceil((high - low) / 6))]
    inside = [tick for tick in ticks if least * 0.999 <= tick <= most * 1.001]
    if tight and least < most and inside:
        return Axis(least, most, inside, True)
    return Axis(ticks[0], max(ticks[-1], most), ticks, True)


def hue(i: int, number: int) -> float:
    """In degrees, from blue for the first line to orange for the last."""
    return (215 + 175 * i / max(number - 1, 1)) % 360


def colour(i: int, number: int) -> str:
    parts = colorsys.hls_to_rgb(hue(i, number) / 360, 0.55, 0.75)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def _path(line: Line, x_axis: Axis, y_axis: Axis, shade: str) -> str:
    pieces = _pieces(line.xs, line.ys)
    return "".join(_piece([_spot(*p, x_axis, y_axis) for p in piece], shade) for piece in pieces)


def _pieces(
    xs: Sequence[Number], ys: Sequence[Number | None]
) -> list[list[tuple[Number, Number]]]:
    """The points between the gaps."""
    pieces: list[list[tuple[Number, Number]]] = [[]]
    for x, y in zip(xs, ys, strict=True):
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    return [piece for piece in pieces if piece]


def _piece(spots: Sequence[tuple[Number, Number]], shade: str) -> str:
    if len(spots) == 1:
        x, y = spots[0]
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{shade}" />'
    points = f'points="{_joined(spots)}"'
    return f'<polyline fill="none" stroke-width="2" stroke="{shade}" {points} />'


def _band(line: Line, x_axis: Axis, y_axis: Axis, shade: str) -> str:
    if not line.low:
        return ""
    edges = list(zip(line.xs, line.low, line.high, strict=True))
    there = [edge for edge in edges if None not in edge]
    up = [_spot(x, low, x_axis, y_axis) for x, low, _ in there if low is not None]
    down = [_spot(x, high, x_axis, y_axis) for x, _, high in there if high is not None]
    points = f'points="{_joined([*up, *down[::-1]])}"'
    return f'<polygon fill="{shade}" fill-opacity="0.2" {points} />' if there else ""


def _joined(spots: Sequence[tuple[Number, Number]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)


def _ring(mark: Mark, x_axis: Axis, y_axis: Axis) -> str:
    x, y = _spot(mark.x, mark.y, x_axis, y_axis)
    title = f"<title>{escape(mark.text)}</title>"
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="6" fill="none" stroke-width="2"'
    return f'<circle class="mark" {place}>{title}</circle>'


def _spot(x: Number, y: Number, x_axis: Axis, y_axis: Axis) -> tuple[Number, Number]:
    return _across(x, x_axis), y_axis.place(y, HEIGHT - BOTTOM, TOP)


def _across(x: Number, x_axis: Axis) -> float:
    return x_axis.place(x, LEFT + _INSET, WIDTH - RIGHT - _INSET)


def _grid(x_axis: Axis, y_axis: Axis) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    drawn = []
    for tick in y_axis.ticks:
        y = y_axis.place(tick, bottom, TOP)
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" />')
        drawn.append(_text(LEFT - 6, y + 4, y_axis.show(tick), "end"))
    for tick in x_axis.ticks:
        drawn.append(_text(_across(tick, x_axis), bottom + 16, x_axis.show(tick), "middle"))
    return drawn


def _labels(x_label: str, y_label: str) -> list[str]:
    """What the axes are, where no tick can be: below the one and above the other."""
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [_text(middle, HEIGHT - 6, x_label, "middle"), _text(4, 12, y_label, "start")]


def _text(x: Number, y: Number, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _legend(names: Sequence[str]) -> list[tuple[str, str]]:
    """The names of all lines, or of some if they are many."""
    if len(names) < 2:
        return []
    last, skip = len(names) - 1, math.ceil(len(names) / _MOST_NAMES)
    shown = [i for i in range(len(names)) if i % skip == 0 or i == last]
    return [(colour(i, len(names)), names[i]) for i in shown]


def matrix(
    title: str, names: Sequence[str], counts: Sequence[Sequence[int]], note: str
) -> list[Drawing]:
    """Which class was taken for which: a row for what it is, a column for what was said. The
    darker a cell, the more of its row are in it.
    """
    number, short = len(names), [_shorten(name) for name in names]
    margin = 12 + _LETTER * max(map(len, short))
    size = max(WIDTH - margin - 8, 16 * number) / number
    wide = max(map(len, short)) * _LETTER > size
    top = margin if wide else _LINE + 6
    at, down, drawn = (lambda i: margin + size * i), (lambda i: top + size * i), []
    for i, row in enumerate(counts):
        drawn.append(_text(margin - 6, down(i + 0.5) + 4, short[i], "end"))
        drawn.append((_upright if wide else _level)(at(i + 0.5), top - 6, short[i]))
        for j, count in enumerate(row):
            share = count / max(sum(row), 1)
            said = f"{count} of {sum(row)} that are {names[i]} were taken for {names[j]}"
            drawn.append(_cell(at(j), down(i), size, share, said))
            if count and size >= 20:
                kind = ' class="on"' if share > _DARK_CELL else ""
                drawn.append(_text(at(j + 0.5), down(i + 0.5) + 4, str(count), "middle", kind))
    whole = (at(number) + 4, down(number) + 4)
    return [Drawing(title, "".join(drawn), whole, note=note)]


def _shorten(name: str) -> str:
    return name if len(name) <= 12 else name[:11] + "…"


def _level(x: Number, y: Number, text: str) -> str:
    return _text(x, y, text, "middle")


def _upright(x: Number, y: Number, text: str) -> str:
    return _text(x + 4, y, text, "start", f' transform="rotate(-90 {x + 4:.1f} {y:.1f})"')


def _cell(x: Number, y: Number, size: Number, share: Number, said: str) -> str:
    place = f'x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{size - 1:.1f}" height="{size - 1:.1f}"'
    shade = 0.15 + 0.85 * share  # A single mistake is to be seen, too.
    kind = f'class="cell" fill-opacity="{shade:.3f}"' if share else 'class="soft" opacity="0.3"'
    return f"<rect {place} {kind}><title>{escape(said)}</title></rect>"


def bars(
    title: str, names: Sequence[str], shares: Sequence[Number], texts: Sequence[str], note: str
) -> list[Drawing]:
    """A bar for each name, of a share between 0 and 1, and a text beside it."""
    short = [_shorten(name) for name in names]
    left, right = (12 + _LETTER * max(map(len, each)) for each in (short, texts))
    height = 22
    drawn = []
    for i, (name, share, text) in enumerate(zip(short, shares, texts, strict=True)):
        y, room = 6 + height * i, WIDTH - left - right
        place = f'x="{left:.1f}" y="{y}" height="{height - 6}"'
        drawn += [
            _text(left - 6, y + 13, name, "end"),
            f'<rect class="soft" opacity="0.5" {place} width="{room:.1f}" />',
            f'<rect class="cell" {place} width="{room * share:.1f}" />',
            _text(WIDTH - right + 8, y + 13, text, "start"),
        ]
    return [Drawing(title, "".join(drawn), (WIDTH, 8 + height * len(names)), note=note)]
