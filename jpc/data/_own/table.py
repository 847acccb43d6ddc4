import array
import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, NoReturn, TextIO

import numpy as np

from .cells import MISSING, Code, Seen, as_number
from .columns import Columns, find_columns, match_columns
from .found import DataError, Found, Like, Part, Target, check_size, count_names

DELIMITERS = {".csv": ",;\t", ".tsv": "\t"}
_LONGEST, _MOST_COLUMNS, _TOP = 2**24, 100_000, 1000
_DIGITS = 15  # A number has no more.
_COUNTS = ("", "unnamed: 0", "index", "row", "no", "nr", "#")  # Names of row numbers.


class _Rows(NamedTuple):
    """Features as numbers, the words of the targets, and the lines of a table."""

    inputs: np.ndarray
    targets: list[list[str]]
    lines: list[int]


class _OddCellError(ValueError):
    """Neither a number nor a word that is known."""

    def __init__(self, line: int, row: list[str]):
        self.line, self.row = line, row


def read_table(path: Path, target: Target, leave_out: Sequence[str], like: Like | None) -> Found:
    check_size(str(path), path.stat().st_size // 2)
    top = [row for _, row in islice(_rows(path), _TOP)]
    if not top:
        raise DataError(f"{path} is empty.")
    code, width = Code(comma=_delimiter(path) != ","), len(top[0])
    if like is None:
        columns = find_columns(path, top, target, leave_out)
    else:
        columns, code = match_columns(path, top, like), code._replace(words=like.words)
    try:
        rows = _read(path, columns, width, code)
    except _OddCellError as error:
        if like is not None:
            _explain(path, error.line, error.row, columns, code)
        code = code._replace(words=_find_words(path, columns, width, code.comma))
        rows = _read(path, columns, width, code)
    targets = [
        _read_target(path, [row[i] for row in rows.targets], rows.lines, name, code.comma)
        for i, name in enumerate(columns.names[place] for place in columns.targets)
    ]
    return _make_table(path, rows.inputs, targets, columns, code, keep=like is not None)


def _find_words(path: Path, columns: Columns, width: int, comma: bool) -> list[tuple[str, ...]]:
    seen = [Seen() for _ in columns.features]
    for line, row in _full_rows(path, columns.header, width):
        for each, place in zip(seen, columns.features, strict=True):
            each.add(line, row[place].strip(), comma)
    every = [(*found, place) for each, place in zip(seen, columns.features, strict=True)
             if (found := each.wrong())]  # fmt: skip
    if every:
        line, said, place = min(every, key=lambda found: (found[0], found[2]))
        name = columns.names[place]
        where = f", line {line}, column {name!r}:" if line else f": the column {name!r}"
        raise DataError(f"{path}{where} {said}")
    return [each.words() for each in seen]


def _read(path: Path, columns: Columns, width: int, code: Code) -> _Rows:
    numbers, words, lines = array.array("d"), [], []
    for line, row in _full_rows(path, columns.header, width):
        try:
            numbers.extend(code.encode([row[i] for i in columns.features]))
        except ValueError:
            raise _OddCellError(line, row) from None
        words.append([row[i].strip() for i in columns.targets])
        lines.append(line)
    if not lines:
        raise DataError(f"{path} has names of columns, but no rows.")
    inputs = np.frombuffer(numbers).reshape(len(lines), -1)
    if not (finite := np.isfinite(inputs)).all():
        line = lines[int(np.argmin(finite.all(axis=1)))]
        raise _OddCellError(line, dict(_rows(path))[line])
    return _Rows(inputs, words, lines)


def _explain(path: Path, line: int, row: list[str], columns: Columns, code: Code) -> NoReturn:
    """What is wrong with the features of a row."""
    at = code.first_wrong([row[i] for i in columns.features])
    place = columns.features[at]
    cell, known = row[place].strip(), code.words[at] if code.words else ()
    said = f"{path}, line {line}, column {columns.names[place]!r}: "
    if cell.lower() in MISSING:
        said += "empty." if not cell else f"{cell!r} is not a number to compute with."
        raise DataError(f"{said} Fill it in, or delete the row or the column.")
    if known:
        raise DataError(f"{said}{cell[:40]!r} was not learned; there are {', '.join(known[:10])}.")
    raise DataError(f"{said}{cell[:40]!r} is not a number to compute with.")


def _read_target(
    path: Path, words: list[str], lines: list[int], name: str, comma: bool
) -> np.ndarray:
    """Numbers, if all of them are; else words."""
    if all(word.lower() in MISSING for word in words):
        what = f"the column {name!r}" if name else "the last column, which has no name,"
        hint = "" if name else ", or take the comma off the end of each line"
        raise DataError(f"{path}: {what} is empty. Name another target{hint}.")
    numbers = [as_number(word, comma) for word in words]
    odd = [i for i, number in enumerate(numbers) if number is None]
    for i, line in enumerate(lines):
        said = f"{path}, line {line}, column {name!r}: "
        if words[i].lower() in MISSING:
            raise DataError(f"{said}no label. Fill it in, or delete the row.")
        if numbers[i] is None and len(odd) < 0.1 * len(words):
            said += f"{words[i][:40]!r} is not a number, as most others are"
            raise DataError(f"{said}. Mend it, or delete the row.")
    if len({*words}) > len({*numbers}) and all(map(_is_long, words)):
        return np.array(words)  # Codes, which as numbers would be the same.
    values = np.array(words if odd else numbers)
    return values if odd or np.isfinite(values.astype(float)).all() else np.array(words)


def _is_long(word: str) -> bool:
    return word.isdigit() and len(word) > _DIGITS


def _make_table(
    path: Path, inputs: np.ndarray, targets: list[np.ndarray], columns: Columns, code: Code, *,
    keep: bool,
) -> Found:  # fmt: skip
    """The table, without a first column of row numbers, such as Pandas and R write."""
    features, places, words, notes = columns.features, columns.targets, code.words, []
    names = [columns.names[i] for i in features]
    if not keep and len(features) > 1 and features[0] == 0 and _is_count(columns, inputs[:, 0]):
        notes = ["without its column of row numbers"]
        inputs, names, words = inputs[:, 1:], names[1:], words[1:]
        places = [place - 1 for place in places]
    if lettered := [name for name, each in zip(names, words, strict=False) if each]:
        kinds = sum(map(len, words))
        notes.append(f"{kinds} of them for the words of {', '.join(lettered)}")
    named = tuple(columns.names[place] for place in columns.targets)
    usual = ("target",) if len(named) == 1 else tuple(f"target {i + 1}" for i in range(len(named)))
    part = Part(inputs, _together(path, targets, named), count_names(inputs))
    return Found(
        {"train": part},
        features=tuple(names) if columns.header else (),
        words=tuple(map(tuple, words)) if any(words) else (),
        places=tuple(places),
        targets=named if columns.header else usual,
        note="; ".join(notes),
    )


def _together(path: Path, targets: list[np.ndarray], names: Sequence[str]) -> np.ndarray | None:
    """Several are numbers to predict."""
    if len(targets) < 2:
        return targets[0] if targets else None
    for values, name in zip(targets, names, strict=True):
        if values.dtype.kind == "U":
            what = f"several targets are numbers, but {str(values[0])!r} is a word: name one"
            raise DataError(f"{path}, column {name!r}: {what} target, or others.")
    return np.stack(targets, axis=1)


def _is_count(columns: Columns, values: np.ndarray) -> bool:
    """Row numbers, by their name: nothing else, or an identity."""
    name = columns.names[0].lower()
    named = columns.header and (name in _COUNTS or name.endswith("id"))
    return named and values[0] in (0, 1) and bool(np.all(np.diff(values) == 1))


def _delimiter(path: Path) -> str:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return max(DELIMITERS[path.suffix.lower()], key=file.readline(_LONGEST).count)


def _full_rows(path: Path, skip: bool, width: int) -> Iterator[tuple[int, list[str]]]:
    """Without the names, and all as long as these."""
    for line, row in _rows(path, skip=skip):
        if len(row) != width:
            what = f"{len(row)} cell{'s' * (len(row) > 1)}, but line 1 has {width}"
            raise DataError(f"{path}, line {line}: {what}. Every row needs as many.")
        yield line, row


def _rows(path: Path, *, skip: bool = False) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, with the lines they end in."""
    line, length = 1, 0

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
        mark = _delimiter(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            for row in (reader := csv.reader(lines(file), delimiter=mark, strict=True)):
                line, length = reader.line_num, 0
                if len(row) > _MOST_COLUMNS:
                    what = f"{len(row):,} columns, more than {_MOST_COLUMNS:,}"
                    raise DataError(f"{path}, line {line}: {what}. Save it as .npz.")
                if any(map(str.strip, row)):
                    if not skip:
                        yield line, row
                    skip = False
    except UnicodeDecodeError:
        said = f"{path}, line {_undecoded(path)}: not UTF-8 text"
        raise DataError(
            f"{said}. Save the table as UTF-8, in an editor or a spreadsheet."
        ) from None
    except csv.Error as error:
        open_quote = "unexpected end" in str(error)
        said = "a quotation mark is opened and not closed" if open_quote else error
        raise DataError(f"{path}, after line {line}: {said}.") from None


def _undecoded(path: Path) -> int:
    """The first line that is not text."""
    for line, text in enumerate(path.read_bytes().split(b"\n"), start=1):
        try:
            text.decode()
        except UnicodeDecodeError:
            return line
    return 1
