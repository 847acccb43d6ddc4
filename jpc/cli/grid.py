"""Which settings a sweep tries: several values of an option, or a range to draw from."""

import dataclasses
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._suggest import did_you_mean
from .check import check_tables, check_value, make_config
from .config import ENTRIES, Config, ConfigError, Entry
from .toml import parse

_BY_NAME = {entry.name: entry for entry in ENTRIES}
_BY_KEY = {(entry.table, entry.key): entry for entry in ENTRIES}
_WORDS = {"yes": True, "true": True, "no": False, "false": False}


class Range(NamedTuple):
    """Numbers between two, on a logarithmic scale if they are all above 0."""

    low: float
    high: float
    whole: bool

    def draw(self, chance: random.Random) -> int | float:
        if self.low > 0:
            value = math.exp(chance.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = chance.uniform(self.low, self.high)
        return round(value) if self.whole else float(f"{value:.3g}")


Axis = Sequence[Any] | Range
Setting = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """`fixed` are the options that all runs share, `axes` those that differ, by name. Without a
    number of `draws` all combinations are tried.
    """

    fixed: Setting
    axes: dict[str, Axis]
    draws: int | None = None
    seeds: int = 1

    def settings(self) -> list[Setting]:
        """What is tried, each with the options that differ."""
        if self.draws is not None:
            drawn = [self._draw(i) for i in range(self.draws)]
            return [s for i, s in enumerate(drawn) if s not in drawn[:i]]
        for name, axis in self.axes.items():
            if isinstance(axis, Range):
                flag = _BY_NAME[name].flag
                shown = f"{flag} {axis.low:g}..{axis.high:g}"
                raise ConfigError(f"{shown} is a range: give --random 20 to draw from it.")
        product = itertools.product(*self.axes.values())
        return [dict(zip(self.axes, values, strict=True)) for values in product]

    def _draw(self, i: int) -> Setting:
        """The same one for the same number, however many there are."""
        chance = random.Random(f"jpc {i}")
        return {
            name: axis.draw(chance) if isinstance(axis, Range) else chance.choice(axis)
            for name, axis in self.axes.items()
        }

    def with_seeds(self, setting: Setting) -> list[Setting]:
        """All options of the runs of a setting."""
        given = self.fixed | setting
        first = given.get("seed", 0)
        return [given | dict(seed=first + i) for i in range(self.seeds)]


def check_settings(runs: Sequence[Setting]) -> list[Config]:
    """Refuses what cannot be run, before anything is."""
    configs = []
    for given in runs:
        tables: dict[str, dict[str, Any]] = {}
        for name, value in given.items():
            entry = _BY_NAME[name]
            tables.setdefault(entry.table, {})[entry.key] = value
        try:
            configs.append(make_config(tables))
        except ConfigError as error:
            raise ConfigError(f"{describe_setting(given)}: {error}") from None
    return configs


def read_sweep(args: Sequence[str], *, draws: int | None, seeds: int | None) -> Sweep:
    """The sweep of a command line, and of the file that it names."""
    file, given = _split(args)
    own, values = ({}, {}) if file is None else _read_file(file)
    values |= {name: _read(_BY_NAME[name], text) for name, text in given.items()}
    draws = own.get("random") if draws is None else draws
    seeds = own.get("seeds", 1) if seeds is None else seeds
    for flag, number in (("--random", draws), ("--seeds", seeds)):
        if number is not None and not (isinstance(number, int) and number >= 1):
            raise ConfigError(f"{flag} must be a whole number of at least 1, got {number}.")
    axes = {n: axis for n, axis in values.items() if isinstance(axis, Range) or len(axis) > 1}
    if draws is not None and not axes:
        raise ConfigError("--random has nothing to draw: give an option several values.")
    if "seed" in axes:
        raise ConfigError("Give --seeds 3 for the seeds 0, 1, 2; --seed is the first of them.")
    fixed = {n: axis[0] for n, axis in values.items() if n not in axes}
    return Sweep(fixed, axes, draws, seeds or 1)


def _split(args: Sequence[str]) -> tuple[Path | None, dict[str, str]]:
    """The file and the options of a command line, by name."""
    file, given, rest = None, {}, list(args)
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        if not word.startswith("--"):
            if file is not None:
                raise ConfigError(f"{word} is no option: write --OPTION VALUE,VALUE.")
            file = Path(word + equals + value)
            continue
        entry, negated = _find(word)
        if not equals and entry.kind is bool and not (rest and _is_yes_or_no(rest[0])):
            value = "no" if negated else "yes"
        elif not equals:
            if not rest:
                raise ConfigError(f"{word} needs a value, or several: {word} VALUE,VALUE.")
            value = rest.pop(0)
        given[entry.name] = value
    return file, given


def _find(flag: str) -> tuple[Entry, bool]:
    flags = {entry.flag: (entry, False) for entry in ENTRIES}
    flags |= {f"--no-{e.flag[2:]}": (e, True) for e in ENTRIES if e.kind is bool}
    if flag in flags:
        return flags[flag]
    hint = did_you_mean(flag, list(flags)) or " jpc train --help-all lists them."
    raise ConfigError(f"There is no option {flag}.{hint}")


def _is_yes_or_no(text: str) -> bool:
    return all(part in _WORDS for part in text.split(","))


def _read(entry: Entry, text: str) -> Axis:
    """`1e-3,1e-2`, or `1e-4..1e-1` for a range of numbers."""
    low, dots, high = text.partition("..")
    if dots and entry.kind in (int, float):
        bounds = [_parse(entry, part) for part in (low, high)]
        if not bounds[0] < bounds[1]:
            raise ConfigError(f"{entry.flag} {text}: a range begins with its smaller end.")
        return Range(*bounds, whole=entry.kind is int)
    return list(dict.fromkeys(_parse(entry, part) for part in text.split(",")))


def _parse(entry: Entry, text: str) -> Any:
    kinds = {bool: _WORDS.__getitem__, str: str, int: int, float: float}
    try:
        value = kinds[entry.kind](text.strip())
    except (KeyError, ValueError):
        words = {bool: "yes or no", int: "whole numbers", float: "numbers"}
        many = f"{words[entry.kind]}, with commas between them"
        raise ConfigError(f"{entry.flag} takes {many}, got {text!r}.") from None
    check_value(entry, value)
    return value


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, Axis]]:
    """The table [sweep] of a file, and its options, of which each may be a list."""
    tables = parse(path)
    own = tables.pop("sweep", {})
    if unknown := sorted(own.keys() - {"random", "seeds"}):
        raise ConfigError(f"Unknown key {unknown[0]!r} in [sweep]: there are random, seeds.")
    # Whatever is wrong with a table or a key is found by the checks of a file of one run.
    check_tables({t: {} if _knows(t, o) else o for t, o in tables.items()})
    options = [(_BY_KEY[t, key], value) for t, o in tables.items() for key, value in o.items()]
    return own, {entry.name: _read_entry(entry, value) for entry, value in options}


def _knows(table: str, options: Any) -> bool:
    return isinstance(options, Mapping) and all((table, key) in _BY_KEY for key in options)


def _read_entry(entry: Entry, value: Any) -> Axis:
    if isinstance(value, str) and entry.kind is not str:
        return _read(entry, value)
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ConfigError(f"{entry.flag} is an empty list: give it values.")
    for each in values:
        check_value(entry, each)
    return [float(each) if entry.kind is float else each for each in values]


def show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_setting(setting: Setting) -> str:
    """`learning-rate 0.01, width 64`."""
    return ", ".join(f"{_BY_NAME[n].flag[2:]} {show(v)}" for n, v in setting.items())


def as_args(given: Setting) -> list[str]:
    """The options of `jpc train` for a run."""
    args = []
    for name, value in given.items():
        flag = _BY_NAME[name].flag
        if isinstance(value, bool):
            args.append(flag if value else f"--no-{flag[2:]}")
        else:
            args += [flag, repr(value) if isinstance(value, float) else str(value)]
    return args
