"""All commands. They say what they did; errors are short, and a number for the shell."""

import json
from typing import Annotated

import typer

import jpc.data

from .. import __version__
from . import datasets as datasets, runs as runs, studies as studies
from .shared import Debug, Json, app, exits, place
from .text import say


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


@app.command()
def doctor(as_json: Json = False, debug: Debug = False) -> None:
    """Say what is found here, and what to do about what is not.

    Versions, devices, precision, the cache of compiled programs, extras, data.

    jpc doctor
    """
    with exits(debug):
        from .doctor import examine  # noqa: PLC0415

        examination = examine({name: place(name) for name in jpc.data.NAMES})
        say(json.dumps(examination.found) if as_json else examination.page())


app.command("info", hidden=True)(doctor)
