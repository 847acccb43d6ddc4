"""The commands. They say what they did; errors are short, and a number for the shell."""

import contextlib
import json
import math
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import jpc.data

from .. import __version__
from .._claim import InUseError, hold
from .._extras import TRAIN
from .._files import write_whole
from . import INTERRUPTED
from .advice import advise
from .config import Config, ConfigError
from .folder import RunFolder, choose_folder, take_folder
from .grid import Sweep, as_args, read_sweep
from .help import App, Group
from .options import read_config, with_options
from .safe import explain, kept_safe, plain_warnings, tell_of_killed
from .suggest import did_you_mean
from .summary import summarise
from .sweep import choose_sweep_folder, run_sweep
from .text import say, say_data

# What needs JAX is imported by the commands that need it: it takes seconds.
app = App(
    name="jpc",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=dict(help_option_names=["-h", "--help"]),
)
data_app = App(cls=Group, no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Seeds = Annotated[
    int | None, typer.Option(metavar="N", help="Train with N seeds: mean, deviation.", min=1)
]
Smoke = Annotated[bool, typer.Option("--smoke", help="Tiny, in seconds, on digits.")]
Draw = Annotated[bool, typer.Option("--draw", help="Run nothing: draw what is there.")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Where, also to go on in.")]
Minutes = Annotated[
    float, typer.Option(metavar="X", help="Begin no network after these.", show_default=False)
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help=", ".join(jpc.data.NAMES))]


def _say_version(asked: bool) -> bool:
    if asked:
        say(f"jpc {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_say_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Train predictive coding networks, in JAX.

    jpc train
    jpc train --dataset mnist --width 300
    """


@data_app.callback()
def data() -> None:
    """Data sets on this machine.

    jpc data list
    """


@contextlib.contextmanager
def _exits(debug: bool = False) -> Iterator[None]:
    """What went wrong, in words: 2 for a wrong use, 1 for all else."""
    try:
        with plain_warnings():
            yield
    except (ConfigError, InUseError) as error:
        say(f"jpc: {error}", err=True)
        raise typer.Exit(2) from None
    except typer.Exit:
        raise
    except ModuleNotFoundError as error:
        say(f"jpc: This needs {error.name}: {TRAIN}.", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say("stopped", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if debug:
            raise
        say(f"jpc: {explain(error)}", err=True)
        raise typer.Exit(1) from None


@app.command()
@with_options
def train(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A TOML file of options.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A new folder [runs/DATASET-N].", show_default=False),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with the run of this folder.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Resume even if data or code are others.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the run that is in --out.")
    ] = False,
    show: Annotated[bool, typer.Option("--open", help="Show the report at the end.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
    seeds: Seeds = None,
    given: dict[str, Any] | None = None,
) -> None:
    """Train a network, and leave a folder with its report.

    FILE is a TOML file; options here win. Defaults: [so], or the first of a list.

    jpc train --dataset mnist --width 300 --epochs 5
    jpc train experiment.toml --seed 1
    """
    shown = not (quiet or as_json)
    if anyway and resume is None:
        with _exits():
            raise ConfigError("--anyway goes with --resume RUN.")
    if seeds is not None:
        with _exits(debug):
            if resume is not None or overwrite:
                raise ConfigError("--seeds goes on by itself: leave out --resume, --overwrite.")
            args = [] if file is None else [str(file)]
            sweep = read_sweep([*args, *as_args(given or {})], draws=None, seeds=seeds)
            if sweep.axes:
                raise ConfigError(f"{file} has lists of values: jpc sweep {file}.")
            _sweep(sweep, out, "seeds", 1, shown, as_json)
        return
    with _exits(debug):
        config = _choose_run(file, out, resume, overwrite, given or {})
        from .report import describe_metric  # noqa: PLC0415
        from .train import prepare, train as train_task  # noqa: PLC0415

        task = prepare(config, progress=shown)
        with _take(out, resume, overwrite, config) as folder, kept_safe(folder, debug):
            if shown:
                if config.data.is_own:
                    say(task.setting.dataset)
                say(f"{folder.path}: {describe(task.setting.config)}")
            how = "anyway" if anyway else resume is not None
            record = train_task(task, folder, resume=how, progress=shown)
    if as_json:
        say(json.dumps(dict(record, run=str(folder.path), report=str(folder.report))))
    elif shown:
        said = describe_metric(task.headline, record[task.headline])
        say(f"{said} after {record['epoch']} epochs\nreport: {folder.report}")
        for line in advise(task.setting.config, record):
            say(line, err=True)
    if show and not webbrowser.open(folder.report.resolve().as_uri()):
        say("jpc: --open found no browser here: open the report yourself.", err=True)


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
        int | None, typer.Option(metavar="N", help="Draw N settings; LOW..HIGH is a range.", min=1)
    ] = None,
    seeds: Seeds = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Runs at a time.", min=1)] = 1,
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
    with _exits(debug):
        given = read_sweep(options or [], draws=random, seeds=seeds)
        if not given.axes and given.seeds == 1:
            raise ConfigError(
                "Nothing to sweep: give an option several values, a,b, or --seeds 3."
            )
        _sweep(given, out, "sweep", jobs, not (quiet or as_json), as_json)


def _sweep(
    sweep: Sweep, out: Path | None, kind: str, jobs: int, shown: bool, as_json: bool
) -> None:
    """Runs it, and says what came out."""
    folder, tell = (choose_sweep_folder(out, sweep, kind), say if shown else lambda text: None)
    try:
        results = run_sweep(sweep, folder, jobs=jobs, tell=tell)
    except KeyboardInterrupt:
        say("\nWhat is done is kept: the same command goes on.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    found = summarise(sweep, folder.runs(sweep), results)
    write_whole(folder.path / "sweep.csv", found.csv())
    if found.axes and found.best is not None:
        write_whole(folder.path / "sweep.png", found.plot())
    failed = [name for name, result in results.items() if "error" in result]
    if as_json:
        say(json.dumps(found.as_json() | dict(folder=str(folder.path), failed=failed)))
    elif shown:
        say(f"\n{found.table()}\n\n{found.say_best()}")
        say(f"{found.caution()}\n".lstrip() + f"table and picture: {folder.path}")
    if failed:
        killed = all("again" in results[name] for name in failed)
        again = (
            "the same command goes on" if killed else f"delete {folder.path / failed[0]} to retry"
        )
        say(f"jpc: {len(failed)} of {len(results)} runs failed: {again}.", err=True)
        raise typer.Exit(1)


def describe(config: Config) -> str:
    """`digits, discriminative, mlp of 3 x 128, equilibrium`."""
    network = config.network
    shape = f"{network.depth} x {network.width}" if network.kind == "mlp" else network.channels
    named = (config.data.name, config.data.task, f"{network.kind} of {shape}")
    rule = [] if config.training.rule == "pc" else [config.training.rule]
    return ", ".join([*named, *rule, str(config.inference.method)])


def _choose_run(
    file: Path | None, out: Path | None, resume: Path | None, overwrite: bool, given: dict
) -> Config:
    if resume is None:
        config = read_config(file, given)
        choose_folder(out, config.data.name, overwrite=overwrite)
        return config
    if file is not None or out is not None or overwrite:
        raise ConfigError("--resume RUN goes without FILE, --out and --overwrite.")
    folder = RunFolder(resume)
    config = folder.read_config()
    if not given:
        return config
    if given.keys() != {"epochs"} or config.optimiser.schedule != "constant":
        raise ConfigError(
            "A run is resumed as it was begun; --epochs alone may be given, to go on for longer, "
            "if it was begun with --schedule constant."
        )
    return read_config(folder.config, given)


@contextlib.contextmanager
def _take(
    out: Path | None, resume: Path | None, overwrite: bool, config: Config
) -> Iterator[RunFolder]:
    """The folder of a run, for this process alone."""
    if resume is None:
        with take_folder(out, config.data.name, overwrite=overwrite) as folder:
            yield folder
    else:
        with hold(resume):
            yield RunFolder(resume)


@app.command("eval")
def evaluate(
    run: Run,
    data: Annotated[
        str | None, typer.Option(metavar="PATH", help="Other data like it.", show_default=False)
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Evaluate a run on the test set, from its newest checkpoint.

    jpc eval runs/digits-1
    """
    with _exits(debug):
        from .evaluate import evaluate_run  # noqa: PLC0415

        found = evaluate_run(RunFolder(run), data)
        tell_of_killed([RunFolder(run)])
    _tell(found, as_json)


@app.command()
def predict(
    run: Run,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Examples, with targets or not.")],
    out: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Where to write.", show_default=False)
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict the classes or numbers of new examples, as csv.

    jpc predict runs/my-1 new.csv --out predictions.csv
    """
    with _exits(debug):
        from .predict import check_output, predict_run, write_csv  # noqa: PLC0415

        check_output(out)
        rows = predict_run(RunFolder(run), file)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_whole(out, write_csv(rows))
        if as_json:
            say(json.dumps(rows))
        elif out is None:
            say_data(write_csv(rows).rstrip())
        else:
            say(f"{len(rows)} predictions: {out}")


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.")],
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plot them: .png, .svg, .pdf.", show_default=False),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="HTML", help="Write a report of all of them.", show_default=False),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare runs: a table; those with other seeds as groups, and whether these differ.

    jpc compare runs/digits-1 runs/digits-2 --report both.html
    """
    with _exits(debug):
        from .compare import compare_runs, write_comparison  # noqa: PLC0415

        if plot is not None and plot.suffix not in (".png", ".svg", ".pdf"):
            raise ConfigError(f"--plot {plot} must end in .png, .svg or .pdf.")
        folders = [RunFolder(run) for run in runs]
        found = compare_runs(folders)
        tell_of_killed(folders)
        if plot is not None:
            plot.parent.mkdir(parents=True, exist_ok=True)
            write_whole(plot, found.plot(plot.suffix[1:]))
        if report is not None:
            write_comparison(found, report)
    say(json.dumps(found.rows) if as_json else found.text())


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
    with _exits(debug):
        from .. import experiments  # noqa: PLC0415  (it is slow to import)

        if figure == "list":
            said = lambda f: f"{f.title}: {', '.join(f.datasets)}"
            return _tell({name: said(f) for name, f in experiments.FIGURES.items()}, False)
        for name in dataset or []:
            _check_name(name)
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
        int | None, typer.Option(metavar="N", help="So many at most.", show_default=False, min=1)
    ] = None,
    minutes: Minutes = math.inf,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare rules of learning: accuracy, cost, regime.

    jpc bench deep --smoke
    """
    with _exits(debug):
        from .tables import bench as run_table, choose_cells, list_tables  # noqa: PLC0415  (it is slow to import)

        if table == "list":
            return _tell(list_tables(), False)
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
    try:
        yield
    except KeyboardInterrupt:
        said = "What is done is kept: the same command goes on, and --draw draws it."
        say(f"\n{said}", err=True)
        raise typer.Exit(INTERRUPTED) from None


@app.command()
def doctor(as_json: Json = False, debug: Debug = False) -> None:
    """Say what is found here, and what to do about what is not.

    Versions, devices, precision, the cache of compiled programs, extras, data.

    jpc doctor
    """
    with _exits(debug):
        from .doctor import examine  # noqa: PLC0415

        examination = examine({name: _place(name) for name in jpc.data.NAMES})
        say(json.dumps(examination.found) if as_json else examination.page())


app.command("info", hidden=True)(doctor)


def _place(name: str) -> str | None:
    place = jpc.data.where(name)
    return None if place is None else str(place)


def _tell(found: dict[str, Any], as_json: bool) -> None:
    """A dictionary, for a program or for a person."""
    if as_json:
        say(json.dumps(found))
        return
    width = max(map(len, found))
    for name, value in found.items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        say(f"{name:{width}}  {'not on this machine' if value is None else shown}")


@data_app.command("list")
def list_data(as_json: Json = False) -> None:
    """List the data sets, and where they are.

    jpc data list
    """
    _tell({name: _place(name) for name in jpc.data.NAMES}, as_json)


@data_app.command("describe")
def describe_data(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help=f"{', '.join(jpc.data.NAMES)}, or a path.")
    ],
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a path.", show_default=False)
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Where to draw it.", show_default=False)
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what is in a data set: counts, shapes, ranges, classes.

    jpc data describe my.csv --picture my.png
    """
    with _exits(debug):
        from .describe import describe_dataset, draw_data, load_any  # noqa: PLC0415

        dataset = load_any(name, target)
        if picture is not None:
            picture.parent.mkdir(parents=True, exist_ok=True)
            write_whole(picture, draw_data(dataset))
        _tell(describe_dataset(dataset, whole=as_json), as_json)


@data_app.command()
def fetch(name: Name, quiet: Quiet = False, debug: Debug = False) -> None:
    """Download a data set unless it is here, and print where it is.

    jpc data fetch mnist
    """
    with _exits(debug):
        _check_name(name)
        place = jpc.data.fetch(name, progress=not quiet)
    if not quiet:
        say(place)


@data_app.command()
def where(name: Name) -> None:
    """Print where a data set is, or exit with 1.

    jpc data where mnist
    """
    with _exits():
        _check_name(name)
    if (place := _place(name)) is None:
        say(f"{name} is not on this machine: jpc data fetch {name}", err=True)
        sys.exit(1)
    say(place)


def _check_name(name: str) -> None:
    if name not in jpc.data.NAMES:
        said = did_you_mean(name, jpc.data.NAMES)
        listed = ", ".join(jpc.data.NAMES)
        raise ConfigError(f"{name!r} is no data set: there are {listed}.{said}")
