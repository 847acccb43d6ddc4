"""The files of a figure."""

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from .._files import write_whole
from . import _tables
from ._cell import Cell, Row
from ._figures import Figure
from ._tables import NETWORK, Table, group

STATISTICS = {
    "times": "mean ± standard deviation of their means over {moments} moments of training",
    "accuracies": "mean ± standard deviation; the highest is of {moments} moments of training",
    "grid": "their mean, the highest of {moments} moments of training",
    "theory": "their mean; the highest accuracy is of {moments} moments of training",
    "gap": "the median of those settings with which all of them get there",
}

SOLVERS = {
    "euler": "Euler takes steps of dt to T.",
    "heun": (
        "Heun begins with dt, has a PIDController(1e-3, 1e-3) and ends if it settles, at T or "
        "after 1,000 steps at the latest; a third of its gradients are for that test."
    ),
}


def write_report(
    name: str,
    figure: Figure,
    size: str,
    cells: Sequence[Cell],
    found: Mapping[Cell, list[Row]],
    out: Path,
    missing: Mapping[str, str],
) -> Path:
    """Writes the data, the picture and what there is to say, and returns the path of the last.
    `found` is what was measured of the cells; `missing` says of data sets why they are.
    """
    flag = "" if size == "default" else f" --{size}"
    if not found:
        reasons = [f"Nothing of {name}{flag} was run in {out}.", *missing.values()]
        raise FileNotFoundError(" ".join(reasons))
    rows = [row for mine in found.values() for row in mine]
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / f"{name}.csv", _csv(rows))
    parts = [
        f"# {name}",
        f"{figure.title}.",
        f"    jpc reproduce {name}{flag} --out {shlex.quote(str(out))}",
        _conditions(figure.kind, next(iter(found)), rows),
        *_places(rows),
        _picture(figure.kind, rows, out / name),
        _markdown(getattr(_tables, figure.kind)(rows)),
        *_not_run(cells, found, missing),
    ]
    write_whole(out / f"{name}.md", "\n\n".join(parts) + "\n")
    return out / f"{name}.md"


def _csv(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _picture(kind: str, rows: Sequence[Row], path: Path) -> str:
    """Draws a figure, if it can, and returns what to write in its place."""
    try:
        from . import _draw  # noqa: PLC0415
    except ImportError:
        return "No picture: Matplotlib is not installed. With it, the same command draws one."
    canvas = getattr(_draw, kind)(rows)
    undated = {".png": {}, ".pdf": {"CreationDate": None}}  # The same picture, the same file.
    for suffix, metadata in undated.items():
        buffer = io.BytesIO()
        canvas.savefig(buffer, format=suffix[1:], dpi=150, metadata=metadata)
        write_whole(path.with_name(path.name + suffix), buffer.getvalue())
    return f"![{path.name}]({path.name}.png)"


def _conditions(kind: str, cell: Cell, rows: Sequence[Row]) -> str:
    each = group(rows, "dataset").values()
    steps = " or ".join(dict.fromkeys(str(max(r["step"] for r in mine)) for mine in each))
    length = f"one epoch ({steps} steps)" if cell.steps is None else f"{steps} steps"
    moments = " or ".join(dict.fromkeys(str(len(group(mine, "step"))) for mine in each))
    seeds = len({row["seed"] for row in rows})
    many = f"{seeds} initialisation{'s' if seeds > 1 else ''}"
    networks = (
        f"Networks of {cell.width} units a layer, {cell.act}, squared error, normalised images, "
        f"batch {cell.batch}, Adam {cell.learning_rate:g}, {length} of training, {many} "
        f"({STATISTICS[kind].format(moments=moments)})."
    )
    if cell.measure == "gap":
        return networks + " They are trained with Equilibrium, 3 chords."
    used = [SOLVERS[solver] for solver in SOLVERS if any(r["solver"] == solver for r in rows)]
    dts = {row["dt"] for row in rows}
    step = f", dt = {cell.dt:g}" if len(dts) == 1 else ""
    return " ".join([networks, f"Inference is the flow of the batch's mean energy{step}.", *used])


def _places(rows: Sequence[Row]) -> list[str]:
    """Where and when it was run and, if that is not the same for all of it, what."""
    each = sorted(group(rows, "date", "device", "products", "jax", "jpc").items())
    said = "Run on {}: {}, products in {}, JAX {}, jpc {}".format
    named = lambda mine: [f"{d} H = {h} {s}" for d, h, s in group(mine, *NETWORK, "solver")]
    what = lambda mine: f" ({'; '.join(named(mine))})" if len(each) > 1 else ""
    return [f"{said(*place)}{what(mine)}." for place, mine in each]


def _markdown(table: Table) -> str:
    head, *lines = table
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def _not_run(
    cells: Sequence[Cell], found: Mapping[Cell, list[Row]], missing: Mapping[str, str]
) -> list[str]:
    """What is missing: a line for each network and solver."""
    networks: dict[str, list[Cell]] = {}
    for c in cells:
        networks.setdefault(f"- {c.dataset}, H = {c.hidden}, {c.solver}", []).append(c)
    left = {name: [c for c in mine if c not in found] for name, mine in networks.items()}
    lines = [name + _some(left[name], networks[name]) for name in networks if left[name]]
    return ["\n".join(["Not run:", *missing.values(), "", *lines])] if lines else []


def _some(left: Sequence[Cell], cells: Sequence[Cell]) -> str:
    """`: T = 5, dt = 0.5; T = 5, dt = 0.1 (seeds 1, 2)`, or nothing if they are all."""
    if len(left) == len(cells):
        return ""
    settings: dict[str, list[str]] = {}
    for cell in left:
        settings.setdefault(cell.times, []).append(str(cell.seed))
    every = len({cell.seed for cell in cells})
    seeds = lambda own: "" if len(own) == every else f" (seeds {', '.join(own)})"
    return ": " + "; ".join(times + seeds(own) for times, own in settings.items())
