"""Small data sets in the published formats, written here byte by byte."""

import gzip
import hashlib
import io
import struct
import tarfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from jpc.data._source import SOURCES

TRAIN, TEST = 50, 20


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def make_examples(shape, seed=0):
    """Random images and labels: training and test data."""
    rng = np.random.default_rng(seed)
    draw = lambda high, *size: rng.integers(0, high, size, np.uint8)
    return tuple((draw(256, n, *shape), draw(10, n)) for n in (TRAIN, TEST))


def idx(array):
    """The idx format: two zeros, the type (8 for bytes), the rank, the sizes, the values."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def records(images, labels):
    """CIFAR-10's format: for each example its label and its pixels."""
    return b"".join(bytes([y]) + x.tobytes() for x, y in zip(images, labels, strict=True))


def tarball(files):
    """A tar.gz archive like CIFAR-10's: not in order, and with a file that is not data."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in [("readme.html", b"<html>"), *reversed(files.items())]:
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def tiny(name, **changes):
    """A small stand-in for a data set: its source, its examples, its files, its downloads."""
    shape = SOURCES[name].shape
    train, test = make_examples(shape)
    if name == "cifar10":
        batches = zip(*(np.array_split(part, 5) for part in train), strict=True)
        files = {f"data_batch_{i}.bin": records(*b) for i, b in enumerate(batches, start=1)}
        files["test_batch.bin"] = records(*test)
        downloads = {"cifar10/cifar-10-binary.tar.gz": tarball(files)}
    else:
        arrays = train[0][:, 0], train[1], test[0][:, 0], test[1]
        files = dict(zip(SOURCES[name].contents, map(idx, arrays), strict=True))
        downloads = {f"{name}/{file}.gz": gzip.compress(data) for file, data in files.items()}
    source = replace(
        SOURCES[name],
        contents={file: sha256(data) for file, data in files.items()},
        downloads={path: sha256(data) for path, data in downloads.items()},
        **changes,
    )
    return SimpleNamespace(
        name=name, source=source, train=train, test=test, files=files, downloads=downloads
    )


def write(root, files):
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def assert_loaded(dataset, data):
    """What was loaded, not normalised, is what was written."""
    for loaded, (images, labels) in ((dataset.train, data.train), (dataset.test, data.test)):
        np.testing.assert_array_equal(loaded[0], np.float32(images) / np.float32(255))
        np.testing.assert_array_equal(loaded[1], labels)
        assert (loaded[0].dtype, loaded[1].dtype) == (np.float32, np.int32)
