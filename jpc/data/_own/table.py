import array
import csv
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn, TextIO

import numpy as np

from .found import DataError, Found, Like, Part, check_size, count_names, some

DELIMITERS = {".csv": ",;\t", ".tsv": "\t"}
_LONGEST, _MOST_COLUMNS = 2**24, 100_000
_MISSING = ("", "nan", "na", "n/a", "null", "?", "-")


class _Columns(NamedTuple):
    """The names in the first line, if it has names, and the places of features and target."""

    header: bool
    names: list[str]
    features: list[int]
    target: int | None


def read_table(path: Path, target: str | None, like: Like | None) -> Found:
    check_size(str(path), path.stat().st_size // 2)
    first = next(_rows(path), (0, []))[1]
    if not first:
        raise DataError(f"{path} is empty.")
    columns = _find_columns(path, first, target) if like is None else _match(path, first, like)
    numbers, words, lines = array.array("d"), [], []
    for line, row in _rows(path, skip=columns.header):
        if len(row) != len(first):
            what = f"{len(row)} cells, but line 1 has {len(first)}"
            raise DataError(f"{path}, line {line}: {what}. Every row needs as many.")
        try:
            numbers.extend([float(row[i]) for i in columns.features])
        except ValueError:
            _explain(path, line, row, columns)
        if columns.target is not None:
            words.append(row[columns.target].strip())
        lines.append(line)
    if not lines:
        raise DataError(f"{path} has names of columns, but no rows.")
    inputs = np.frombuffer(numbers).reshape(len(lines), -1)
    if not (finite := np.isfinite(inputs)).all():
        line = lines[int(np.argmin(finite.all(axis=1)))]
        _explain(path, line, dict(_rows(path))[line], columns)
    if columns.target is not None:
        _check_labels(path, words, lines, columns)
    return _make_table(inputs, words, columns, keep=like is not None)


def _check_labels(path: Path, words: list[str], lines: list[int], columns: _Columns) -> None:
    assert columns.target is not None
    name, pairs = columns.names[columns.target], list(zip(lines, words, strict=True))
    for line, word in pairs:
        if word.lower() in _MISSING:
            _explain_missing(path, line, columns.target, name, "no label")
    odd = [(line, word) for line, word in pairs if _number(word) is None]
    if 0 < len(odd) < 0.1 * len(pairs):
        line, word = odd[0]
        said = f"{path}, line {line}, column {name!r}: {word[:40]!r} is not a number"
        raise DataError(f"{said}, as most others are. Mend it, or delete the row.")


def _make_table(inputs: np.ndarray, words: list[str], columns: _Columns, *, keep: bool) -> Found:
    """The table, without a first column of row numbers, such as Pandas and R write."""
    features, note = columns.features, ""
    column = -1 if columns.target is None else columns.target
    if not keep and len(features) > 1 and features[0] == 0 and _is_count(columns, inputs[:, 0]):
        inputs, features, column = inputs[:, 1:], features[1:], column - 1
        note = "without its column of row numbers"
    named = tuple(columns.names[i] for i in features) if columns.header else ()
    if columns.target is None:
        return Found({"train": Part(inputs, None, count_names(inputs))}, named, note=note)
    part = Part(inputs, _numbers_or_words(words), count_names(inputs))
    target = columns.names[columns.target] if columns.header else "target"
    return Found({"train": part}, named, column, target, note=note)


def _is_count(columns: _Columns, values: np.ndarray) -> bool:
    unnamed = columns.header and columns.names[0] in ("", "Unnamed: 0")
    return unnamed and values[0] in (0, 1) and bool(np.all(np.diff(values) == 1))


def _rows(path: Path, *, skip: bool = False) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, with the lines they end in."""
    line, marks, length = 1, DELIMITERS[path.suffix.lower()], 0

    def lines(file: TextIO) -> Iterator[str]:
        """Those of a row are together no longer than a row may be."""
        nonlocal length
        while text := file.readline(_LONGEST):
            length += len(text)
            if length >= _LONGEST:
                raise DataError(
                    f"{path}, after line {line}: a row of {length:,} letters. Is it a table?"
                )
            yield text

    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            mark = max(marks, key=file.readline(_LONGEST).count)
            file.seek(0)
            for row in (reader := csv.reader(lines(file), delimiter=mark, strict=True)):
                line, length = reader.line_num, 0
                if len(row) > _MOST_COLUMNS:
                    what = f"{len(row):,} columns, more than {_MOST_COLUMNS:,}"
                    raise DataError(f"{path}, line {line}: {what}. Save it as .npz.")
                if any(map(str.strip, row)):
                    if not skip:
                        yield line, row
                    skip = False
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason}. Save it as such.") from None
    except csv.Error as error:
        raise DataError(f"{path}, after line {line}: {error}.") from None


def _find_columns(path: Path, first: list[str], target: str | None) -> _Columns:
    """Which column is which. The target is the last one unless it is named."""
    cells, last = [cell.strip() for cell in first], len(first) - 1
    if last < 1:
        raise DataError(f"{path} has one column: it needs features and a target, with commas.")
    place = last if target is None else _place(cells, target)
    header = place is None or cells[place] == target or _is_header(cells, place)
    names = cells if header else [str(i) for i in range(1, last + 2)]
    if place is None:
        raise DataError(f"{path} has no column {target!r}: there are {some(names)}.")
    if len({*names}) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise DataError(f"{path}, line 1: two columns are called {twice!r}. Rename one.")
    return _Columns(header, names, [i for i in range(last + 1) if i != place], place)


def _place(cells: list[str], target: str) -> int | None:
    """A column by its name, or by its number from 1."""
    if target in cells:
        return cells.index(target)
    with suppress(ValueError):
        number = int(target)
        return number - 1 if 1 <= number <= len(cells) else None
    return None


def _is_header(cells: list[str], target: int) -> bool:
    """Whether the first row is names: no fractions, and a word at least. Whole numbers may be
    names too, such as years.
    """
    rest = [cell for i, cell in enumerate(cells) if i != target]
    named = [cell for cell in rest if _number(cell) is None and cell.lower() not in _MISSING]
    return bool(named) and all(_number(cell) is None or cell.isdigit() for cell in rest)


def _match(path: Path, first: list[str], like: Like) -> _Columns:
    """The columns of a new table: by their names if it has any, else by their places."""
    cells, names, count = [cell.strip() for cell in first], like.features, math.prod(like.shape)
    there = [name for name in names if name in cells]
    if names and len(there) == len(names):
        target = cells.index(like.target) if like.target in cells else None
        return _Columns(True, cells, [cells.index(name) for name in names], target)
    header = _is_header(cells, like.column)
    if there or (names and header):
        missing = next(name for name in names if name not in cells)
        raise DataError(f"{path} has no column {missing!r}: there are {some(cells)}.")
    if len(cells) not in (count, count + 1):
        what = f"{count} features, with or without a target"
        raise DataError(f"{path}, line 1: {len(cells)} cells, but the network takes {what}.")
    place = like.column % len(cells) if len(cells) > count else None
    numbers = [str(i + 1) for i in range(len(cells))]
    features = [i for i in range(len(cells)) if i != place]
    return _Columns(header, cells if header else numbers, features, place)


def _explain(path: Path, line: int, row: list[str], columns: _Columns) -> NoReturn:
    """What is wrong with the features of a row."""
    bad = lambda cell: (value := _number(cell)) is None or not math.isfinite(value)
    place = next(i for i in columns.features if bad(row[i]))
    cell, name = row[place].strip(), columns.names[place]
    if not cell:
        _explain_missing(path, line, place, name, "empty")
    said = f"{path}, line {line}, column {name!r}: {cell[:40]!r} is not a number"
    if _number(cell) is not None or cell.lower() in _MISSING:
        raise DataError(f"{said} to compute with. Fill it in, or delete the row or the column.")
    if re.fullmatch(r"[-+]?\d+,\d+", cell):
        raise DataError(f"{said}. Write {cell.replace(',', '.')}, with a point.")
    raise DataError(f"{said}. Write words as numbers, or delete the column.")


def _explain_missing(path: Path, line: int, place: int, name: str, what: str) -> NoReturn:
    column = (row[place] for _, row in _rows(path, skip=True) if len(row) > place)
    if not any(map(str.strip, column)):
        raise DataError(f"{path}: the column {name!r} is empty. Fill it in, or delete it.")
    said = f"{path}, line {line}, column {name!r}: {what}"
    raise DataError(f"{said}. Fill it in, or delete the row.")


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return None


def _numbers_or_words(words: list[str]) -> np.ndarray:
    """Numbers if all of them are, and finite."""
    with suppress(ValueError):
        numbers = np.array([float(word) for word in words])
        if np.isfinite(numbers).all():
            return numbers
    return np.array(words)
