"""Files as they were published. The contents of each are compared with a checksum before
anything is made of them, so that what parses them need not doubt a header or a length.
"""

import gzip
import hashlib
import math
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import UInt8

from ._split import stratified

_MOST_BYTES = 2**28

Shape: TypeAlias = tuple[int, ...]
# Images, of shape (examples, channels, height, width), and their labels.
Raw: TypeAlias = tuple[UInt8[np.ndarray, "_ _ _ _"], UInt8[np.ndarray, " _"]]


def stored(folder: Path, name: str) -> Path | None:
    """Where a folder has a file, plain or gzipped."""
    paths = folder / name, folder / f"{name}.gz"
    return next((path for path in paths if path.is_file()), None)


def holds(place: Path, names: Iterable[str]) -> bool:
    """Whether a place is an archive, or a folder with all these files."""
    return place.is_file() or all(stored(place, name) for name in names)


def read(place: Path, checksums: Mapping[str, str]) -> dict[str, bytes]:
    """The contents of the files in a folder or in a tar archive.

    **Arguments:**

    - `place`: the folder, or the archive.
    - `checksums`: the SHA-256 of the contents of each file.

    **Returns:**

    The contents of the files, in the order of `checksums`. A damaged one is a `ValueError`
    with its path.
    """
    if place.is_file():
        paths = dict.fromkeys(checksums, place)
        contents = _unpack(place, checksums)
    else:
        paths = {name: stored(place, name) or place / name for name in checksums}
        contents = {name: _unzip(path) for name, path in paths.items()}
    for name, checksum in checksums.items():
        found = hashlib.sha256(contents.get(name, b"")).hexdigest()
        if found != checksum:
            reason = f"the contents of {name} have the SHA-256 {found}, those published {checksum}"
            raise _damaged(paths[name], reason)
    return {name: contents[name] for name in checksums}


def _unzip(path: Path) -> bytes:
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            return _read_some(path, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _damaged(path, str(error)) from error


def _read_some(path: Path, file: Any) -> bytes:
    """All of a file, but no more than any that was published has."""
    data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise _damaged(path, f"it has more than {_MOST_BYTES:,} bytes")
    return data


def _unpack(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    # In one pass: to go back in a compressed archive is to decompress it again. Nothing is
    # written, so that the folders in its names do not matter.
    try:
        with tarfile.open(path, "r:gz") as archive:
            named = ((PurePosixPath(member.name).name, member) for member in archive)
            plain = ((name, m) for name, m in named if name in names and m.isfile())
            files = ((name, archive.extractfile(member)) for name, member in plain)
            return {name: _read_some(path, file) for name, file in files if file}
    except (gzip.BadGzipFile, EOFError, zlib.error, tarfile.TarError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"{path} is damaged: {reason}. Delete it and load again to download it, or put a good "
        "copy in its place."
    )


def parse_idx(contents: Mapping[str, bytes], shape: Shape) -> tuple[Raw, Raw]:
    """MNIST's format: a header of 16 bytes before images and of 8 before labels."""
    images, labels, test_images, test_labels = contents.values()
    pixels = lambda data: np.frombuffer(data, np.uint8, offset=16).reshape(-1, *shape)
    numbers = lambda data: np.frombuffer(data, np.uint8, offset=8)
    return (pixels(images), numbers(labels)), (pixels(test_images), numbers(test_labels))


def parse_batches(contents: Mapping[str, bytes], shape: Shape) -> tuple[Raw, Raw]:
    """CIFAR's format: files of records, the last of them to test with."""
    *train, test = contents.values()
    return _records(b"".join(train), shape), _records(test, shape)


def parse_digits(contents: Mapping[str, bytes], shape: Shape) -> tuple[Raw, Raw]:
    """One file of records, a fifth of them to test with."""
    (data,) = contents.values()
    images, labels = _records(data, shape)
    test = stratified(labels, math.ceil(len(labels) / 5))
    return (images[~test], labels[~test]), (images[test], labels[test])


def _records(data: bytes, shape: Shape) -> Raw:
    """A byte for the label, then one for each pixel, channel by channel."""
    records = np.frombuffer(data, np.uint8).reshape(-1, 1 + math.prod(shape))
    return records[:, 1:].reshape(-1, *shape), records[:, 0]
