"""Results that are kept as lines of JSON, each written when it is known."""

import json
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def read_lines(path: Path, parse: Callable[[Any], T]) -> list[T]:
    """What the lines of a file say. Those that `parse` fails on are told of and left alone."""
    found, bad = [], []
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            found.append(parse(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            bad.append(str(number))
    if bad:
        said = f"{path} has lines that are no results: {', '.join(bad)}."
        warnings.warn(said, stacklevel=3)
    return found


def append_lines(path: Path, values: Iterable[Any]) -> None:
    """Writes values at the end of a file, after a line whose writing was interrupted too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        whole = file.tell() == 0 or path.read_bytes().endswith(b"\n")
        file.write("" if whole else "\n")
        file.writelines(json.dumps(value) + "\n" for value in values)
        file.flush()
        os.fsync(file.fileno())
