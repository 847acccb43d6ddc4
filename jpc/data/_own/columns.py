"""Which column of a table is which: by its name, or by its place."""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..._suggest import did_you_mean
from .cells import MISSING, as_number
from .found import DataError, Like, Target, some


class Columns(NamedTuple):
    """The names in the first line, if it has names, and the places of features and targets."""

    header: bool
    names: list[str]
    features: list[int]
    targets: list[int]


def find_columns(
    path: Path, top: list[list[str]], target: Target, leave_out: Sequence[str]
) -> Columns:
    """Which column is which. The target is the last one unless it is named.

    **Arguments:**

    - `top`: the first rows.
    - `target`, `leave_out`: names of columns, or their numbers from 1.
    """
    cells = [cell.strip() for cell in top[0]]
    wanted = [] if target is None else _split(cells, target)
    guess = [_place(cells, name) for name in wanted] if wanted else [len(cells) - 1]
    named = any(name in cells and as_number(name) is None for name in (*wanted, *leave_out))
    header = named or is_header(top, guess)
    names = cells if header else [str(i) for i in range(1, len(cells) + 1)]
    for name in (*wanted, *leave_out):
        if _place(names, name) is None:
            said = f"{path} has no column {name!r}: there are {some(names)}."
            raise DataError(f"{said}{did_you_mean(name, names)}")
    if twice := _twice(names):
        raise DataError(f"{path}, line 1: two columns are called {twice[0]!r}. Rename one.")
    if twice := _twice([_place(names, name) for name in wanted]):
        raise DataError(f"{path}: the target {names[twice[0]]!r} is named twice.")
    left_out = [_place(names, name) for name in leave_out]
    rest = [i for i in range(len(cells)) if i not in left_out]
    targets = (
        rest[-1:] if target is None else [i for n in wanted if (i := _place(names, n)) is not None]
    )
    features = [i for i in rest if i not in targets]
    if not features:
        if len(cells) == 1:
            what = f"one column, {cells[0][:40]!r} in its first line"
            raise DataError(
                f"{path} has {what}: it needs features and a target, with commas, semicolons or "
                "tabs between them, and their names, if any, in the first line."
            )
        raise DataError(f"{path} has no column left to learn from: leave out fewer.")
    return Columns(header, names, features, targets)


def _twice(names: list[Any]) -> list[Any]:
    """Those that are in a list again."""
    return [name for name, count in Counter(names).items() if count > 1]


def _split(cells: list[str], target: str | Sequence[str]) -> list[str]:
    """`a,b` is two columns, unless one is called so."""
    if not isinstance(target, str):
        return list(target)
    return [target] if target in cells else [name.strip() for name in target.split(",")]


def _place(cells: list[str], name: str) -> int | None:
    """A column by its name, or by its number from 1."""
    if name in cells:
        return cells.index(name)
    with suppress(ValueError):
        number = int(name)
        return number - 1 if 1 <= number <= len(cells) else None
    return None


def is_header(top: list[list[str]], targets: Sequence[int | None]) -> bool:
    """Whether the first row is names: a word at least, no fractions, and no word that is in the
    column below it again. Whole numbers may be names too, such as years, also alone; and so may
    no name at all be, of the row numbers that Pandas writes.
    """
    cells, below = [cell.strip() for cell in top[0]], top[1:]
    rest = [i for i in range(len(cells)) if i not in targets]
    words = [i for i in rest if as_number(cells[i]) is None and cells[i].lower() not in MISSING]
    whole = all(as_number(cells[i]) is None or cells[i].isdigit() for i in rest)
    again = any(len(row) > i and row[i].strip() == cells[i] for i in words for row in below)
    unnamed = cells[0] == "" and bool(below) and all(row[0].strip() for row in below)
    return (bool(words) or unnamed or _is_series(top)) and whole and not again


def _is_series(top: list[list[str]]) -> bool:
    """Whether the first row, and no other, counts on from 0, as Pandas does, or from a year."""
    first, *below = (_counts_from([cell.strip() for cell in row]) for row in top)
    known = (first == 0 and len(top[0]) > 2) or (first is not None and 1900 <= first <= 2100)
    return known and all(number is None for number in below)


def _counts_from(cells: list[str]) -> int | None:
    """The first of numbers that count on, `None` if they do not."""
    if len(cells) < 2 or not all(cell.isdecimal() for cell in cells):
        return None
    start = int(cells[0])
    return start if [*map(int, cells)] == [*range(start, start + len(cells))] else None


def match_columns(path: Path, top: list[list[str]], like: Like) -> Columns:
    """The columns of a new table: by their names if it has any, else by their places."""
    cells, names = [cell.strip() for cell in top[0]], like.features
    count = len(like.words) or math.prod(like.shape)
    there = [name for name in names if name in cells]
    if names and len(there) == len(names):
        targets = [cells.index(name) for name in like.targets if name in cells]
        targets = targets if len(targets) == len(like.targets) and like.wanted else []
        return Columns(True, cells, [cells.index(name) for name in names], targets)
    places = [place % len(cells) for place in like.places]
    header = is_header(top, places)
    if there or (names and header):
        missing = next(name for name in names if name not in cells)
        raise DataError(f"{path} has no column {missing!r}: there are {some(cells)}.")
    if len(cells) not in (count, count + len(places)):
        what = f"{count} features" + (", with or without a target" if places else "")
        raise DataError(f"{path}, line 1: {len(cells)} cells, but the network takes {what}.")
    places = places if len(cells) > count else []
    numbers = [str(i + 1) for i in range(len(cells))]
    features = [i for i in range(len(cells)) if i not in places]
    return Columns(header, cells if header else numbers, features, places if like.wanted else [])
