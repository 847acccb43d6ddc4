"""The commands about data sets."""

import sys
from pathlib import Path
from typing import Annotated

import typer

import jpc.data

from .._files import write_whole
from .help import App, Group
from .shared import Debug, Json, Quiet, app, check_ending, check_name, exits, place, tell
from .text import say, told

data_app = App(cls=Group, no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")

Name = Annotated[str, typer.Argument(metavar="NAME", help=", ".join(jpc.data.NAMES))]


@data_app.callback()
def data() -> None:
    """Data sets on this machine.

    jpc data list
    """


@data_app.command("list")
def list_data(as_json: Json = False) -> None:
    """List the data sets, and where they are.

    jpc data list
    """
    tell({name: place(name) for name in jpc.data.NAMES}, as_json)


@data_app.command("describe")
def describe_data(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help=f"{', '.join(jpc.data.NAMES)}, or a path.")
    ],
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a path.", show_default=False)
    ] = None,
    leave_out: Annotated[
        str | None, typer.Option(metavar="A,B", help="Columns of it.", show_default=False)
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
    with exits(debug):
        from .describe import describe_dataset, draw_data, load_any  # noqa: PLC0415

        check_ending("--picture", picture, ".png")
        with told("reading the data ...", not as_json, err=True):
            dataset = load_any(name, target, leave_out)
        if picture is not None:
            picture.parent.mkdir(parents=True, exist_ok=True)
            write_whole(picture, draw_data(dataset))
        tell(describe_dataset(dataset, whole=as_json), as_json)


@data_app.command()
def fetch(name: Name, quiet: Quiet = False, debug: Debug = False) -> None:
    """Download a data set unless it is here, and print where it is.

    jpc data fetch mnist
    """
    with exits(debug):
        check_name(name)
        found = jpc.data.fetch(name, progress=not quiet)
    if not quiet:
        say(found)


@data_app.command()
def where(name: Name) -> None:
    """Print where a data set is, or exit with 1.

    jpc data where mnist
    """
    with exits():
        check_name(name)
    if (found := place(name)) is None:
        say(f"{name} is not on this machine: jpc data fetch {name}", err=True)
        sys.exit(1)
    say(found)
