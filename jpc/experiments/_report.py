"""The files of a figure."""

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from .._files import write_whole
from . import _tables
from ._cell import Cell, Row, Store
from ._figures import Figure
from ._tables import Table, group


def write_report(
    name: str,
    figure: Figure,
    size: str,
    cells: Sequence[Cell],
    store: Store,
    out: Path,
    missing: Mapping[str, str],
) -> Path:
    """Writes the data, the picture and what there is to say, and returns the path of the last.
    `missing` says of data sets why they are.
    """
    rows, flag = store.rows(cells), "" if size == "default" else f" --{size}"
    if not rows:
        reasons = " ".join(missing.values())
        raise FileNotFoundError(f"Nothing of {name}{flag} was run in {out}. {reasons}")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / f"{name}.csv", _csv(rows))
    parts = [
        f"# {name}",
        f"{figure.title}.",
        f"    jpc reproduce {name}{flag} --out {shlex.quote(str(out))}",
        _conditions(cells[0], rows),
        *dict.fromkeys(map(_place, rows)),
        _picture(figure.kind, rows, out / name),
        _markdown(getattr(_tables, figure.kind)(rows)),
        *_not_run(cells, store, missing),
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
    for suffix in (".png", ".pdf"):
        buffer = io.BytesIO()
        canvas.savefig(buffer, format=suffix[1:], dpi=150)
        write_whole(path.with_name(path.name + suffix), buffer.getvalue())
    return f"![{path.name}]({path.name}.png)"


def _conditions(cell: Cell, rows: Sequence[Row]) -> str:
    each = group(rows, "dataset").values()
    steps = " or ".join(dict.fromkeys(str(max(r["step"] for r in mine)) for mine in each))
    length = f"one epoch ({steps} steps)" if cell.steps is None else f"{steps} steps"
    seeds = len({row["seed"] for row in rows})
    networks = (
        f"Networks of {cell.width} units a layer, {cell.act}, squared error, normalised images, "
        f"batch {cell.batch}, Adam {cell.learning_rate:g}, {length} of training, {seeds} "
        "initialisations (mean ± standard deviation of these)."
    )
    if cell.measure == "gap":
        return networks + " They are trained with Equilibrium, 3 chords."
    return networks + (
        " Inference is the flow of the batch's mean energy. Heun has a PIDController(1e-3, 1e-3) "
        "and ends if it settles, at T or after 1,000 steps at the latest; a third of its "
        "gradients are for that test. Euler goes on to T."
    )


def _place(row: Row) -> str:
    return "Run on {date}: {device}, products in {products}, JAX {jax}, jpc {jpc}.".format(**row)


def _markdown(table: Table) -> str:
    head, *lines = table
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def _not_run(cells: Sequence[Cell], store: Store, missing: Mapping[str, str]) -> list[str]:
    """What is missing, and the seeds of it unless that is all of them."""
    settings: dict[str, list[Cell]] = {}
    for c in cells:
        settings.setdefault(f"{c.dataset}, H = {c.hidden}, {c.setting}", []).append(c)
    lines = []
    for name, mine in settings.items():
        seeds = [str(cell.seed) for cell in mine if not store.has(cell)]
        some = "" if len(seeds) == len(mine) else f", seeds {', '.join(seeds)}"
        lines += [f"- {name}{some}"] if seeds else []
    return ["\n".join(["Not run:", *missing.values(), "", *lines])] if lines else []
