"""The commands that do many runs: sweeps, the figures of the paper, and tables of rules."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from .._suggest import did_you_mean
from .config import ConfigError
from .grid import read_sweep
from .interrupt import INTERRUPTED, farewell
from .shared import Debug, Json, Quiet, Seeds, app, check_name, count, exits, tell
from .summary import sweep_and_tell
from .text import say

Smoke = Annotated[bool, typer.Option("--smoke", help="Tiny, in seconds, on digits.")]
Draw = Annotated[bool, typer.Option("--draw", help="Run nothing: draw what is there.")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Where, also to go on in.")]
Minutes = Annotated[
    float, typer.Option(metavar="X", help="Begin no network after these.", show_default=False)
]


@app.command(context_settings=dict(ignore_unknown_options=True))
def sweep(
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE --OPTION A,B",
            help="A TOML file, and any options of jpc train with their values.",
            show_default=False,
        ),
    ] = None,
    random: Annotated[
        int | None,
        typer.Option(metavar="N", help="Draw N settings; LOW..HIGH is a range.", parser=count),
    ] = None,
    seeds: Seeds = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Runs at a time.", parser=count)] = 1,
    out: Annotated[
        Path | None, typer.Option(help="A folder, also to go on in.", show_default=False)
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train with many settings, and say which is best. The same command goes on.

    jpc sweep --learning-rate 1e-3,1e-2 --width 64,128 --seeds 3 --jobs 2
    """
    with exits(debug):
        given = read_sweep(options or [], draws=random, seeds=seeds)
        if not given.axes and given.seeds == 1:
            raise ConfigError(
                "Nothing to sweep: give an option several values, a,b, or --seeds 3."
            )
        sweep_and_tell(given, out, "sweep", jobs, not (quiet or as_json), as_json)


@app.command()
def reproduce(
    figure: Annotated[
        str, typer.Argument(metavar="FIGURE", help="fig1 to fig7, fig1-gap, all, or list.")
    ],
    smoke: Smoke = False,
    full: Annotated[bool, typer.Option("--full", help="The paper's size.")] = False,
    out: Out = Path("reproduction"),
    draw: Draw = False,
    dataset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run it only; may be repeated.", show_default=False),
    ] = None,
    hidden: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", help="Run this depth only; may be repeated.", show_default=False
        ),
    ] = None,
    minutes: Minutes = math.inf,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Regenerate a figure of the paper: data, picture, and text.

    jpc reproduce fig1 --smoke
    """
    with exits(debug):
        from .. import experiments  # noqa: PLC0415  (it is slow to import)

        if figure == "list":
            said = lambda f: f"{f.title}: {', '.join(f.datasets)}"
            return tell({name: said(f) for name, f in experiments.FIGURES.items()}, False)
        for name in dataset or []:
            check_name(name)
        size, code = _size(smoke, full, minutes), 0
        only = lambda c: (
            c.dataset in (dataset or [c.dataset]) and c.hidden in (hidden or [c.hidden])
        )
        every = {n: f.cells(experiments.SIZES[size]) for n, f in experiments.FIGURES.items()}
        begin = time.monotonic()
        for name in _choose_figures(figure, every, only):
            try:
                left = minutes - (time.monotonic() - begin) / 60
                options: Any = dict(run=not draw, only=only, minutes=left, progress=not quiet)
                with _going_on():
                    path = experiments.reproduce(name, size, out, **options)
            except FileNotFoundError as error:
                say(f"jpc: {error}", err=True)
                code = 1
                continue
            if not quiet:
                say(path.read_text().rstrip() + f"\n\n{name}: {path}\n")
        if code:
            raise typer.Exit(code)


def _choose_figures(figure: str, every: dict[str, list], only: Callable) -> list[str]:
    """Those that were asked for and have networks that were."""
    if figure not in (*every, "all"):
        said = did_you_mean(figure, [*every, "all", "list"])
        listed = ", ".join(every)
        raise ConfigError(f"{figure!r} is no figure: there are {listed}, all and list.{said}")
    names = list(every) if figure == "all" else [figure]
    chosen = [name for name in names if any(map(only, every[name]))]
    if not chosen:
        cells = [cell for name in names for cell in every[name]]
        sets, depths = ({getattr(c, field) for c in cells} for field in ("dataset", "hidden"))
        has = f"{', '.join(sorted(sets))}, and {', '.join(map(str, sorted(depths)))} hidden layers"
        raise ConfigError(f"{figure} has no such network: it has {has} (with --full, more).")
    return chosen


@app.command()
def bench(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="deep, regime, or list.")],
    smoke: Smoke = False,
    full: Annotated[bool, typer.Option("--full", help="For an accelerator, in hours.")] = False,
    out: Out = Path("bench"),
    draw: Draw = False,
    network: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Train it only; may be repeated.", show_default=False),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Use it only; may be repeated.", show_default=False),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="So many at most.", show_default=False, parser=count),
    ] = None,
    minutes: Minutes = math.inf,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare rules of learning: accuracy, cost, regime.

    jpc bench deep --smoke
    """
    with exits(debug):
        from .tables import bench as run_table, choose_cells, list_tables  # noqa: PLC0415  (it is slow to import)

        if table == "list":
            return tell(list_tables(), False)
        size = _size(smoke, full, minutes)
        only = choose_cells(table, size, network or [], rule or [], seeds)
        with _going_on():
            options: Any = dict(run=not draw, only=only, minutes=minutes, progress=not quiet)
            path = run_table(table, size, out, **options)
        if not quiet:
            say(path.read_text().rstrip() + f"\n\n{table}: {path}")


def _size(smoke: bool, full: bool, minutes: float) -> str:
    if smoke and full:
        raise ConfigError("--smoke and --full are two sizes: give one, or none.")
    if not minutes >= 0:
        raise ConfigError(f"--minutes is how long: got {minutes:g}.")
    return "smoke" if smoke else "full" if full else "default"


@contextlib.contextmanager
def _going_on() -> Iterator[None]:
    """Long work, of which what is done is kept."""
    said = "What is done is kept: the same command goes on, and --draw draws it."
    try:
        with farewell(lambda: said):
            yield
    except KeyboardInterrupt:
        say(f"\n{said}", err=True)
        raise typer.Exit(INTERRUPTED) from None
