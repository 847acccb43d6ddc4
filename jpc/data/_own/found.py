import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

MOST_NUMBERS, MOST_BYTES = 2**30, 2**33
PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
}

Name: TypeAlias = str | os.PathLike[str]
Target: TypeAlias = str | Sequence[str] | None  # One, several, or the usual one; () is none.


class DataError(ValueError):
    """What is wrong with somebody's file, where, and what to do.

    **Example:**

    ```python
    from pathlib import Path

    import jpc.data

    Path("trees.csv").write_text("height,tree\\n2,oak\\n,fir\\n")
    try:
        jpc.data.load("trees.csv")
    except jpc.data.DataError as error:
        said = str(error)  # It names the line.
    ```
    """


class NoTargetsError(DataError):
    """There is nothing to predict.

    **Example:**

    ```python
    import numpy as np

    import jpc.data

    np.savez("my.npz", x=np.random.default_rng(0).normal(size=(20, 3)))
    try:
        jpc.data.load("my.npz")
    except jpc.data.NoTargetsError:
        data = jpc.data.load("my.npz", target=())  # Without targets, for unsupervised learning.
    ```
    """


class Part(NamedTuple):
    """Examples as they are in a file.

    - `inputs`: numbers; the first axis is that of the examples.
    - `targets`: numbers or words, if there are any.
    - `names`: what each example is called among predictions.
    """

    inputs: np.ndarray
    targets: np.ndarray | None
    names: Sequence[str]


class Found(NamedTuple):
    """What is in a file.

    - `parts`: `"train"`, and perhaps `"test"` and `"validation"`.
    - `features`: names of the columns of a table; `words`: those of each column of words, empty
      for a column of numbers, and `()` if all are; `places`: those of its targets.
    - `targets`: their names; `classes`: names for the numbers of classes.
    - `note`: something that was done to the data.
    - `white`: the largest number in the inputs of an image, if that is known.
    """

    parts: dict[str, Part]
    features: tuple[str, ...] = ()
    words: tuple[tuple[str, ...], ...] = ()
    places: tuple[int, ...] = (-1,)
    targets: tuple[str, ...] = ("target",)
    classes: tuple[str, ...] = ()
    note: str = ""
    white: int | None = None


class Like(NamedTuple):
    """What new data must have in common with the data before it: the shape of an input, and the
    columns of a table. The targets may be missing; if they are not `wanted`, they are not
    looked at.
    """

    shape: tuple[int, ...]
    features: tuple[str, ...] = ()
    words: tuple[tuple[str, ...], ...] = ()
    places: tuple[int, ...] = (-1,)
    targets: tuple[str, ...] = ("target",)
    wanted: bool = True


def check_size(where: str, count: int, size: int = 8) -> None:
    """Refuses what would be so many numbers, or words, of so many bytes each."""
    if count > MOST_NUMBERS or count * size > MOST_BYTES:
        raise DataError(
            f"{where} would be {count:.2g} numbers in memory, {count * size:.2g} bytes; "
            f"{MOST_NUMBERS:.2g} and {MOST_BYTES:.2g} may be: give fewer or smaller examples."
        )


@contextmanager
def unchanged(name: Name, files: Iterable[Path]) -> Iterator[None]:
    """Refuses what was read in part before and in part after it was changed."""
    before = [_state(file) for file in files]
    try:
        yield
    finally:
        if [_state(file) for file in files] != before:
            said = f"{name} changed while it was read. Try again when it is complete."
            raise DataError(said) from None


def _state(file: Path) -> tuple[int, ...] | None:
    """What nobody sets back, too: which file it is, and when its entry was changed."""
    try:
        stat = file.stat()
        return stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns
    except FileNotFoundError:
        return None


def some(names: Iterable[str]) -> str:
    """A list that is not too long."""
    names = [repr(name) for name in names]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def count_names(inputs: np.ndarray) -> list[str]:
    """Names of examples that have none."""
    return [str(i) for i in range(1, len(inputs) + 1)]
