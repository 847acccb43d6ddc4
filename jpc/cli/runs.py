"""The commands of a run: to train, to evaluate, to predict, to compare."""

import contextlib
import json
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from .._claim import hold
from .._files import write_whole
from .advice import advise
from .config import Config, ConfigError
from .folder import RunFolder, choose_folder, take_folder
from .grid import as_args, read_sweep
from .options import read_config, with_options
from .safe import kept_safe, tell_of_killed
from .shared import Debug, Json, Quiet, Run, Seeds, app, check_ending, exits, tell
from .summary import sweep_and_tell
from .text import say, say_data, told


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
    for flag, wrong in (
        ("--anyway goes with --resume RUN.", anyway and resume is None),
        ("--overwrite goes with --out FOLDER.", overwrite and out is None and resume is None),
    ):
        with exits():
            if wrong:
                raise ConfigError(flag)
    if seeds is not None:
        with exits(debug):
            if resume is not None or overwrite:
                raise ConfigError("--seeds goes on by itself: leave out --resume, --overwrite.")
            args = [] if file is None else [str(file)]
            sweep = read_sweep([*args, *as_args(given or {})], draws=None, seeds=seeds)
            if sweep.axes:
                raise ConfigError(f"{file} has lists of values: jpc sweep {file}.")
            sweep_and_tell(sweep, out, "seeds", 1, shown, as_json)
        return
    with exits(debug):
        config = _choose_run(file, out, resume, overwrite, given or {})
        with told("reading the data ...", shown):  # And JAX, whatever takes longer.
            from .metrics import describe_metric  # noqa: PLC0415
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
        epochs = f"{record['epoch']} epoch" + "s" * (record["epoch"] != 1)
        say(f"{said} after {epochs}")
        for line in advise(task.setting.config, record):
            say(line, err=True)
        say(f"report: {folder.report}")
    if show and not webbrowser.open(folder.report.resolve().as_uri()):
        say("jpc: --open found no browser here: open the report yourself.", err=True)


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
    with exits(debug):
        with told("evaluating the run ...", not as_json, err=True):
            from .evaluate import evaluate_run  # noqa: PLC0415

            found = evaluate_run(RunFolder(run), data)
        tell_of_killed([RunFolder(run)])
    tell(found, as_json)


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
    with exits(debug):
        with told("predicting ...", not as_json, err=True):
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
    """Compare runs, and say whether groups of seeds differ.

    jpc compare runs/digits-1 runs/digits-2 --report both.html
    """
    with exits(debug):
        from .compare import compare_runs, write_comparison  # noqa: PLC0415

        check_ending("--plot", plot, ".png", ".svg", ".pdf")
        check_ending("--report", report, ".html")
        folders = [RunFolder(run) for run in runs]
        found = compare_runs(folders)
        tell_of_killed(folders)
        if plot is not None:
            plot.parent.mkdir(parents=True, exist_ok=True)
            write_whole(plot, found.plot(plot.suffix[1:]))
        if report is not None:
            write_comparison(found, report)
    say(json.dumps(found.rows) if as_json else found.text())
