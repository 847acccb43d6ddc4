"""What all commands share: the application, options that several have, what is said at the end."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import jpc.data

from .._claim import InUseError
from .._extras import TRAIN
from .._suggest import did_you_mean
from . import INTERRUPTED
from .config import ConfigError
from .help import App, Group
from .safe import explain, plain_warnings
from .text import say

# What needs JAX is imported by the commands that need it: it takes seconds.
app = App(
    name="jpc",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=dict(help_option_names=["-h", "--help"]),
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]


def count(text: Any) -> int:
    """A number of things, from the command line."""
    if not (str(text).isdecimal() and int(text) > 0):
        raise typer.BadParameter(f"it must be a whole number of at least 1, got {text!r}.")
    return int(text)


Seeds = Annotated[
    int | None,
    typer.Option(metavar="N", help="Train with N seeds: mean, deviation.", parser=count),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]


@contextlib.contextmanager
def exits(debug: bool = False) -> Iterator[None]:
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


def tell(found: dict[str, Any], as_json: bool) -> None:
    """A dictionary, for a program or for a person."""
    if as_json:
        say(json.dumps(found))
        return
    width = max(map(len, found))
    for name, value in found.items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        say(f"{name:{width}}  {'not on this machine' if value is None else shown}")


def place(name: str) -> str | None:
    """Where a data set is."""
    found = jpc.data.where(name)
    return None if found is None else str(found)


def check_ending(flag: str, path: Path | None, *endings: str) -> None:
    """Refuses to write a picture or a page over something else."""
    if path is not None and path.suffix not in endings:
        raise ConfigError(f"{flag} {path} must end in {', '.join(endings)}.")


def check_name(name: str) -> None:
    if name not in jpc.data.NAMES:
        said = did_you_mean(name, jpc.data.NAMES)
        listed = ", ".join(jpc.data.NAMES)
        raise ConfigError(f"{name!r} is no data set: there are {listed}.{said}")
