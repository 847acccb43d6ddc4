"""The files that people have: tables, arrays, folders of images, and functions for all else.
What is wrong is said with the line, the key or the file that it is in.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .arrays import read_function, read_npy_files, read_npz
from .cells import is_figure as is_figure
from .found import (
    DataError as DataError,
    Found as Found,
    Like as Like,
    Name as Name,
    NoTargetsError as NoTargetsError,
    Part as Part,
    Target as Target,
    some as some,
    unchanged,
)
from .images import ENDINGS, list_images, read_images
from .table import DELIMITERS, read_table

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_own(name: Name) -> bool:
    """Whether this is a path or a function, rather than the name of a data set.

    **Example:**

    ```python
    import jpc.data

    own, published = jpc.data.is_own("my.csv"), jpc.data.is_own("digits")  # True, False
    ```
    """
    text = os.fspath(name)
    named = _FUNCTION.fullmatch(text) or re.search(r"[./\\]", text)
    return bool(text) and (bool(named) or Path(text).exists())


def read_own(
    name: Name,
    *,
    target: Target = None,
    leave_out: Sequence[str] = (),
    image_size: int | None = None,
    like: Like | None = None,
) -> Found:
    """Reads a file, a folder, or what a function returns.

    **Arguments:**

    - `name`: a path, or `module:function`.
    - `target`: the column, the key or the file of the targets; several columns; or `()`, for
        data without targets.
    - `leave_out`: columns of a table that are not learned from.
    - `image_size`: the side to which images of a folder are scaled.
    - `like`: what the data was like that this is new data for.
    """
    text = os.fspath(name)
    path = Path(text).expanduser()
    ending = path.suffix.lower()
    if ending not in DELIMITERS or path.is_dir():
        target = _only_one(text, target, leave_out)
    if _FUNCTION.fullmatch(text) and not path.exists():
        return read_function(text, target)
    if not (path.is_dir() or path.is_file()):
        raise DataError(f"{text}: there is no such file or folder.")
    if image_size is not None and not (path.is_dir() or ending in ENDINGS):
        raise DataError(f"{text} is no folder of images: leave out image_size (--image-size).")
    with _told(path), unchanged(path, list_images(path) if path.is_dir() else [path]):
        if path.is_dir() or ending in ENDINGS:
            if target:
                raise DataError(f"{text}: the classes of images are their folders; no target.")
            return read_images(path, image_size, like, classes=target != ())
        if ending in DELIMITERS:
            return read_table(path, target, leave_out, like)
        if ending == ".npz":
            return read_npz(path, target)
        if ending == ".npy":
            return read_npy_files(path, target)
    raise DataError(
        f"{text}: {ending or 'a file without an ending'} is not read. Write a .csv, .tsv, .npz or "
        ".npy file, a folder of images in class folders, or module:function."
    )


def _only_one(name: str, target: Target, leave_out: Sequence[str]) -> Any:
    """Only a table has columns to choose from: the one key or file, `None`, or `()`."""
    if leave_out:
        raise DataError(f"{name} is no table: it has no column {leave_out[0]!r} to leave out.")
    if target is None or isinstance(target, str):
        return target
    if len(target) > 1:
        raise DataError(f"{name} is no table: name one key or file of targets, not several.")
    return target[0] if target else ()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the system says of a file, with its name."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise DataError(f"{where} cannot be read: {error.strerror or error}.") from None
    except MemoryError:
        raise DataError(f"{path} does not fit into memory.") from None
