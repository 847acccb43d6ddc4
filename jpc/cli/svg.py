"""Line charts as inline SVG: no scripts, no files, and the colours of the page they are on."""

import html
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

Number: TypeAlias = float | int

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 66, 12, 10, 40
_MOST_NAMES = 8
_SMALLEST = 1e-6


class Line(NamedTuple):
    """A line of a chart, by its name and its points; a `None` is a gap in it."""

    name: str
    xs: Sequence[Number]
    ys: Sequence[Number | None]


class Axis(NamedTuple):
    """From values to pixels, with the values that are marked on the way."""

    low: Number
    high: Number
    ticks: list[Number]
    log: bool = False

    def place(self, value: Number, start: Number, stop: Number) -> float:
        low, high, value = map(self._scale, (self.low, self.high, value))
        return start + (stop - start) * (value - low) / (high - low)

    def _scale(self, value: Number) -> Number:
        return math.log10(value) if self.log else value


def chart(title: str, lines: Sequence[Line], x_label: str, y_label: str, *, log=False) -> str:
    """A figure of HTML with a chart and the names of its lines. On a logarithmic axis what is
    not positive, or tiny beside the largest value, is left out.
    """
    floor = _SMALLEST * max((y for line in lines for y in line.ys if y is not None), default=0.0)
    lines = [_visible(line, max(floor, 0.0) if log else -math.inf) for line in lines]
    points = [point for line in lines for point in zip(line.xs, line.ys, strict=True)]
    if not points:
        return ""
    xs, ys = zip(*points, strict=True)
    x_axis, y_axis = linear_axis(xs, whole=x_label == "epoch"), axis(ys, log)
    paths = [_path(line, x_axis, y_axis, i, len(lines)) for i, line in enumerate(lines)]
    drawn = "".join([*_grid(x_axis, y_axis), *_labels(x_label, y_label), *paths])
    return (
        f"<figure><figcaption>{html.escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">'
        f"{drawn}</svg>{_legend([line.name for line in lines])}</figure>"
    )


def _visible(line: Line, floor: float) -> Line:
    pairs = zip(line.xs, line.ys, strict=True)
    pairs = [(x, y) for x, y in pairs if y is not None and y > floor]
    return Line(line.name, [x for x, _ in pairs], [y for _, y in pairs])


def axis(values: Sequence[Number], log: bool) -> Axis:
    return log_axis(values) if log else linear_axis(values)


def linear_axis(values: Sequence[Number], *, whole: bool = False) -> Axis:
    """About five round numbers, whole ones if asked for."""
    low, high = min(values), max(values)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
        low, high = low - 0.5, high + 0.5
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


def log_axis(values: Sequence[Number]) -> Axis:
    """Powers of ten, at most about six of them."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    skip = math.ceil((high - low) / 6)
    return Axis(10.0**low, 10.0**high, [10.0**i for i in range(low, high + 1, skip)], True)


def hue(i: int, number: int) -> float:
    """In degrees, from blue for the first line to orange for the last."""
    return (215 + 175 * i / max(number - 1, 1)) % 360


def colour(i: int, number: int) -> str:
    return f"hsl({hue(i, number):.0f} 75% 55%)"


def _path(line: Line, x_axis: Axis, y_axis: Axis, i: int, number: int) -> str:
    stroke = f'stroke="{colour(i, number)}"'
    spots = [_spot(x, y, x_axis, y_axis) for x, y in zip(line.xs, line.ys, strict=True)]
    if len(spots) == 1:
        x, y = spots[0]
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour(i, number)}" />'
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    return f'<polyline fill="none" stroke-width="2" {stroke} points="{joined}" />'


def _spot(x: Number, y: Number | None, x_axis: Axis, y_axis: Axis) -> tuple[Number, Number]:
    assert y is not None
    across = x_axis.place(x, LEFT, WIDTH - RIGHT)
    return across, y_axis.place(y, HEIGHT - BOTTOM, TOP)


def _grid(x_axis: Axis, y_axis: Axis) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    drawn = []
    for tick in y_axis.ticks:
        y = y_axis.place(tick, bottom, TOP)
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" />')
        place = f'x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end"'
        drawn.append(f"<text {place}>{tick:.6g}</text>")
    for tick in x_axis.ticks:
        x = x_axis.place(tick, LEFT, right)
        place = f'x="{x:.1f}" y="{bottom + 16}" text-anchor="middle"'
        drawn.append(f"<text {place}>{tick:.6g}</text>")
    return drawn


def _labels(x_label: str, y_label: str) -> list[str]:
    x, y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    up = f'x="12" y="{y}" text-anchor="middle" transform="rotate(-90 12 {y})"'
    return [
        f'<text x="{x}" y="{HEIGHT - 6}" text-anchor="middle">{html.escape(x_label)}</text>',
        f"<text {up}>{html.escape(y_label)}</text>",
    ]


def _legend(names: Sequence[str]) -> str:
    """The names of all lines, or of some if they are many."""
    if len(names) < 2:
        return ""
    last, skip = len(names) - 1, math.ceil(len(names) / _MOST_NAMES)
    shown = [i for i in range(len(names)) if i % skip == 0 or i == last]
    spans = [
        f'<span><i style="background:{colour(i, len(names))}"></i>{html.escape(names[i])}</span>'
        for i in shown
    ]
    return f'<div class="legend">{"".join(spans)}</div>'
