"""What the cells of a table are: numbers, or words of which there are few."""

import dataclasses
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

MISSING = ("", "nan", "na", "n/a", "null", "none", "?", "-")
_MOST_WORDS = 100
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T].*)?|\d{1,2}:\d\d(:\d\d)?")
_FIGURE = re.compile(r"\D{0,4}\d[\d.,' ]*\D{0,4}")  # With a currency, a unit, separators.
_COMMA = re.compile(r"[-+]?\d+,\d+")


def as_number(text: str, comma: bool = False) -> float | None:
    """A number, if it is one; with a decimal comma or a point, or with a point only."""
    with suppress(ValueError):
        return float(text.replace(",", ".") if comma else text)
    return None


def is_figure(word: str) -> bool:
    """Whether a word is a number to people, but not to us."""
    return bool(_FIGURE.fullmatch(word)) and as_number(word) is None


class Code(NamedTuple):
    """How features become numbers. `words` are those of each column, none of a column of
    numbers; if no column has any, that is empty. `comma` says that decimal commas may be there.
    """

    words: Sequence[Sequence[str]] = ()
    comma: bool = False

    def encode(self, cells: Sequence[str]) -> list[float]:
        """Numbers as they are, and a one for a word among zeros for the others of its column. A
        `ValueError` if a cell is neither.
        """
        if not self.words:
            return [float(cell.replace(",", ".") if self.comma else cell) for cell in cells]
        every = zip(cells, self.words, strict=True)
        return [x for cell, words in every for x in self._encode(cell, words)]

    def _encode(self, cell: str, words: Sequence[str]) -> list[float]:
        if not words:
            return [float(cell.replace(",", ".") if self.comma else cell)]
        place = words.index(cell.strip())
        return [float(i == place) for i in range(len(words))]

    def first_wrong(self, cells: Sequence[str]) -> int:
        """The first cell that cannot be encoded, or is not finite."""
        words = self.words or [()] * len(cells)
        return next(i for i, known in enumerate(words) if self._is_wrong(cells[i], known))

    def _is_wrong(self, cell: str, words: Sequence[str]) -> bool:
        if words:
            return cell.strip() not in words
        return (value := as_number(cell, self.comma)) is None or not math.isfinite(value)


@dataclasses.dataclass
class Seen:
    """What was seen in a column: how many cells, numbers and gaps, and each different cell, as
    long as there are few, with the line it was first in; and where the first gap and the first
    word were.
    """

    cells: int = 0
    numbers: int = 0
    missing: int = 0
    lines: dict[str, int] = dataclasses.field(default_factory=dict)
    gap: tuple[int, str] = (0, "")
    word: tuple[int, str] = (0, "")

    def add(self, line: int, cell: str, comma: bool) -> None:
        self.cells += 1
        value = as_number(cell, comma)
        if cell.lower() in MISSING or (value is not None and not math.isfinite(value)):
            self.missing += 1
            self.gap = self.gap if self.gap[0] else (line, cell)
            return
        self.numbers += value is not None
        if value is None and not self.word[0]:
            self.word = line, cell
        if len(self.lines) <= _MOST_WORDS:
            self.lines.setdefault(cell, line)

    def words(self) -> tuple[str, ...]:
        """Its words in order; none if it is of numbers."""
        return tuple(sorted(self.lines)) if self.word[0] else ()

    def wrong(self) -> tuple[int, str] | None:
        """The line of what is wrong with it, and what that is; `None` if nothing is."""
        (line, word), there, different = self.word, self.cells - self.missing, len(self.lines)
        shown = repr(word[:40])
        if line and (2 * self.numbers > there or _COMMA.fullmatch(word)):
            return line, f"{shown} is not a number{_hint(word)}"
        if line and _DATE.fullmatch(word):
            said = "is a date or a time: write it as numbers, such as a year and a month, or"
            return line, f"{shown} {said} {_LEAVE_OUT}."
        if line and (different > _MOST_WORDS or 2 * different > max(there, 4)):
            many = f"over {_MOST_WORDS}" if different > _MOST_WORDS else different
            said = f"{shown} is one of {many} different words in {there} rows, too many to learn:"
            return line, f"{said}{_NUMBER_HINT * is_figure(word)} {_LEAVE_OUT}."
        return self._gap() if self.missing else None

    def _gap(self) -> tuple[int, str]:
        if self.missing == self.cells:
            return 0, f"is empty: fill it in, or {_LEAVE_OUT}."
        line, cell = self.gap
        rows = "the row" if self.missing == 1 else f"the {self.missing} rows that are so"
        said = f"{cell!r} is not a number to compute with" if cell else "empty"
        return line, f"{said}. Fill it in, delete {rows}, or {_LEAVE_OUT}."


_NUMBER_HINT = " write numbers as 1234.5, without signs, or"
_LEAVE_OUT = "leave the column out (--leave-out, leave_out=)"


def _hint(word: str) -> str:
    if _COMMA.fullmatch(word):
        both = f"{word.replace(',', '.')}, with a point, or {word.replace(',', '')}"
        return f". Write {both}, without separators."
    return ", as most others are. Mend it, or delete the row."
