"""The options of the command line, made from those of the configuration."""

import functools as ft
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from jpc.data import NAMES

from .check import check_value, make_config
from .config import ENTRIES, Config, ConfigError, Entry
from .help import show_everything
from .toml import read_tables

_METAVARS = {int: "N", float: "X", str: "NAME", bool: None}
_DATA = (".csv", ".tsv", ".npz", ".npy")
_NUMBERS = {int: "a whole number", float: "a number"}


def with_options(command: Callable) -> Callable:
    """Gives a command an option for each entry of the configuration. It gets those that were
    given as one dictionary by name, `given`.
    """
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "given"]

    @ft.wraps(command)
    def wrapped(**values: Any) -> Any:
        values.pop("help_all")
        said = [(entry, values.pop(entry.name)) for entry in ENTRIES]
        given = {e.name: _parse(e, value) for e, value in said if value is not None}
        return command(given=given, **values)

    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    parameters = [own[0], *map(_parameter, ENTRIES), *own[1:], _help_all()]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    vars(wrapped)["__signature__"] = inspect.Signature(parameters)
    return wrapped


def _parameter(entry: Entry) -> inspect.Parameter:
    flag = f"{entry.flag}/--no-{entry.flag[2:]}" if entry.kind is bool else entry.flag
    begin = lambda incomplete: [c for c in entry.rules["choices"] if c.startswith(incomplete)]
    shown: Any = dict(metavar=_METAVARS[entry.kind], help=_help(entry), show_default=False)
    kind: Any = bool if entry.kind is bool else str
    annotation = Annotated[kind | None, typer.Option(flag, autocompletion=begin, **shown)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(entry.name, keyword, default=None, annotation=annotation)


def _help_all() -> inspect.Parameter:
    text = "Show all options and exit."
    info = typer.Option("--help-all", is_eager=True, callback=show_everything, help=text)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter("help_all", keyword, default=False, annotation=Annotated[bool, info])


def _parse(entry: Entry, text: Any) -> Any:
    """What was written as a number, where one is meant."""
    try:
        return entry.kind(text)
    except ValueError:
        words = _NUMBERS[entry.kind]
        raise ConfigError(f"{entry.flag} must be {words}, got {text!r}.") from None


def _help(entry: Entry) -> str:
    """Its choices, the default first; or what it is, and its default."""
    choices, shown = entry.rules["choices"], entry.rules["shown"]
    if entry.rules["also"]:
        return f"{', '.join(choices)}, or a path"
    if choices and choices[0] == shown:
        return ", ".join(choices)
    return f"{', '.join(choices) or entry.rules['text']} [{shown}]"


def read_config(file: Path | None, given: Mapping[str, Any]) -> Config:
    """The configuration of a file, or the default one, and what the command line says."""
    if file is not None and str(file) in NAMES and not file.exists():
        raise ConfigError(f"{file} is a data set, not a file: jpc train --dataset {file}")
    if file is not None and file.suffix.lower() in _DATA:
        raise ConfigError(f"{file} is data, not a file of options: jpc train --dataset {file}")
    tables = {} if file is None else read_tables(file)
    for entry in ENTRIES:
        if entry.name in given:
            check_value(entry, given[entry.name])
            tables.setdefault(entry.table, {})[entry.key] = given[entry.name]
    return make_config(tables)
