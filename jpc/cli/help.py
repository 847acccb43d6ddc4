"""How the command explains itself: help that fits a screen, with an example first, and errors of
one line that say what to write instead.
"""

import inspect
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from .._suggest import did_you_mean
from .config import ENTRIES, ConfigError
from .text import say

WRONG_USE = 2
_UsageError: Any = typer.BadParameter.__base__  # Its own name has moved between versions.
_EVERYTHING = "jpc.help-all"  # Whether all options are to be shown, in the context.
_TABLES = {entry.name: entry.table.capitalize() for entry in ENTRIES}
_OUTPUT = "Output"
# The options that `--help` shows. `--help-all` shows the others too.
_COMMON = {
    *("dataset", "task", "network", "depth", "width", "activation"),
    *("inference", "dt", "steps", "optimiser", "learning_rate"),
    *("rule", "epochs", "batch_size", "seed"),
    *("out", "resume", "quiet", "help", "help_all"),
}


class App(typer.Typer):
    """A Typer whose commands explain themselves in our way."""

    def command(self, *args: Any, **options: Any) -> Any:
        return super().command(*args, **dict(cls=Command) | options)


class Command(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        _begin(self, ctx, formatter)
        rows = _rows(self, ctx)
        if "help_all" not in rows:
            _write_all(self, formatter, rows)
            return
        shown = set(rows) if ctx.meta.get(_EVERYTHING) else _COMMON
        _write_tables(formatter, {name: row for name, row in rows.items() if name in shown})
        if hidden := len(rows.keys() - shown):
            said = f"{hidden} more options: {ctx.command_path} --help-all"
            formatter.write(f"\n{said}\n")


class Group(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        _begin(self, ctx, formatter)
        self.format_options(ctx, formatter)

    def main(self, *args: Any, standalone_mode: bool = True, **options: Any) -> Any:
        """As it is, but for how it tells what is wrong."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **options)
        try:
            code = super().main(*args, standalone_mode=False, **options)
        except _UsageError as error:
            say(describe(error), err=True)
            raise SystemExit(error.exit_code) from None
        except ConfigError as error:
            say(f"jpc: {error}", err=True)
            raise SystemExit(WRONG_USE) from None
        except typer.Abort:
            raise SystemExit(1) from None
        raise SystemExit(code if isinstance(code, int) else 0)


def describe(error: Any) -> str:
    """A wrong use in a line. A whole page is the help, which was asked for by giving nothing."""
    said, ctx = error.format_message(), error.ctx
    if "\n" in said:
        return said
    if ctx is None:
        return f"jpc: {said}"
    params = ctx.command.get_params(ctx)
    flags = [flag for param in params for flag in (*param.opts, *param.secondary_opts)]
    name = getattr(error, "option_name", flags[0])
    if name not in flags:
        said = f"There is no option {name}.{did_you_mean(name, flags)}"
    return f"jpc: {said} ({ctx.command_path} --help shows how.)"


def show_everything(ctx, asked: bool) -> bool:
    """Shows the help with all options, if that was asked for."""
    if asked:
        ctx.meta[_EVERYTHING] = True
        say(ctx.get_help())
        raise typer.Exit
    return asked


def _begin(command: Any, ctx: Any, formatter: Any) -> None:
    """The examples, which are the paragraph of the help that begins with the command; the usage;
    what the command does.
    """
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    is_example = lambda text: text.startswith("jpc ")
    lines = [line for text in filter(is_example, paragraphs) for line in text.splitlines()]
    if lines:
        formatter.write("Example: " + "\n         ".join(lines) + "\n\n")
    command.format_usage(ctx, formatter)
    for text in paragraphs:
        if not is_example(text):
            formatter.write_paragraph()
            formatter.write_text(text)


def _rows(command: Any, ctx: Any) -> dict[str, tuple[str, str]]:
    """What the help says of each option, by name."""
    options = [p for p in command.get_params(ctx) if p.param_type_name == "option"]
    records = {param.name: param.get_help_record(ctx) for param in options}
    return {name: row for name, row in records.items() if row is not None}


def _write_all(command: Any, formatter: Any, rows: dict[str, tuple[str, str]]) -> None:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    if arguments:
        named = [(p.metavar or p.name.upper(), p.help or "") for p in arguments]
        with formatter.section("Arguments"):
            formatter.write_dl(named)
    with formatter.section("Options"):
        formatter.write_dl(list(rows.values()))


def _write_tables(formatter: Any, rows: dict[str, tuple[str, str]]) -> None:
    width = max(len(flag) for flag, _ in rows.values())
    tables = list(dict.fromkeys([*_TABLES.values(), _OUTPUT]))
    formatter.write_paragraph()
    for table in tables:
        chosen = [row for name, row in rows.items() if _TABLES.get(name, _OUTPUT) == table]
        if chosen:
            formatter.write_heading(table)
            with formatter.indentation():
                formatter.write_dl([(flag.ljust(width), text) for flag, text in chosen])
