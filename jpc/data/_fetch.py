import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from .._extras import TRAIN
from .._given import check_flags
from .._types import Given
from ._formats import holds
from ._source import Source, source_of

Root: TypeAlias = Given[str | os.PathLike[str] | None]


def where(name: Given[str], root: Root = None) -> Path | None:
    """Where a data set is on this machine.

    **Arguments:**

    - `name`: one of [`jpc.data.NAMES`][].
    - `root`: a folder to look in first, before `JPC_DATA_DIR` and the user's cache.

    **Returns:**

    A folder or an archive, or `None` if it has to be downloaded. Whether the files are whole
    is seen when they are loaded.

    **Example:**

    ```python
    import jpc.data

    digits = jpc.data.where("digits")  # They come with the package.
    missing = [name for name in jpc.data.NAMES if jpc.data.where(name) is None]
    ```
    """
    source = source_of(name)
    places = _places(source, root)
    return next((place for place in places if holds(place, source.contents)), None)


def fetch(name: Given[str], *, root: Root = None, progress: Given[bool] = True) -> Path:
    """Makes sure that a data set is on this machine: downloads it into the user's cache unless
    it is found.

    **Arguments:**

    - `name`, `root`: as in [`jpc.data.where`][].
    - `progress`: whether to show a progress bar, on a terminal.

    **Returns:**

    Where it is, as [`jpc.data.where`][] says.

    **Example:**

    ```python
    import jpc.data

    digits = jpc.data.fetch("digits")  # Nothing is downloaded: they come with the package.
    ```
    """
    check_flags(progress=progress)
    if where(name, root) is None:
        _download(name, root, progress)
    return find(name, root)


def find(name: str, root: Root) -> Path:
    """Where a data set is, without a download."""
    place = where(name, root)
    if place is None:
        raise _missing(name, root, ["download=False was given"])
    return place


def _places(source: Source, root: Root) -> Iterator[Path]:
    if not isinstance(root, str | os.PathLike | None):
        raise TypeError(f"root must be the path of a folder, got {root!r}.")
    if root and "\0" in os.fspath(root):
        raise ValueError(f"root has a NUL in it, as no path can: got {root!r}.")
    roots = [root, os.environ.get("JPC_DATA_DIR"), _cache()]
    for folder in filter(None, roots):
        yield from (Path(folder).expanduser() / place for place in source.places)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jpc"


def _download(name: str, root: Root, progress: bool) -> None:
    source = source_of(name)
    for path, checksum in source.downloads.items():
        target = _cache() / path
        urls = [mirror + target.name for mirror in source.mirrors]
        failures = _retrieve(target, urls, checksum, progress)
        if len(failures) == len(urls):
            raise _missing(name, root, failures)


def _retrieve(target: Path, urls: Iterable[str], checksum: str, progress: bool) -> list[str]:
    """Downloads a file from the first address that has it whole. It appears at its place only
    then, and one that is there already is kept.

    **Returns:**

    What was wrong at each address before.
    """
    pooch = _import_pooch()
    show = progress and sys.stderr.isatty()
    downloader = pooch.HTTPDownloader(progressbar=show, chunk_size=2**16)
    failures = []
    for url in urls:
        try:
            pooch.retrieve(
                url, f"sha256:{checksum}", target.name, target.parent, downloader=downloader
            )
            break
        except (OSError, ValueError) as error:
            failures.append(f"{url}: {error}")
    return failures


def _import_pooch() -> Any:
    try:
        import pooch  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(
            f"To download data, {TRAIN}; or set JPC_DATA_DIR to a folder that has them."
        ) from error
    return pooch


def _missing(name: str, root: Root, failures: Iterable[str]) -> FileNotFoundError:
    source = source_of(name)
    lines = lambda items: "".join(f"\n  {item}" for item in items)
    return FileNotFoundError(
        f"{name} is not on this machine. None of these has all its files:"
        f"{lines(_places(source, root))}\n"
        f"It was not downloaded:{lines(failures)}\n"
        f"Without a network, put{lines(source.downloads)}\n"
        "below a folder of your choice and set JPC_DATA_DIR to that folder."
    )
