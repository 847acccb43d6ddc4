from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import ArrayLike, Float32, Int32

from ._fetch import Root, fetch, find
from ._formats import Raw, read
from ._source import Source, source_of
from ._split import stratified

Examples: TypeAlias = tuple[Float32[np.ndarray, "_ ..."], Int32[np.ndarray, " _"]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Images and their classes, as NumPy arrays.

    - `name`: one of [`jpc.data.NAMES`][].
    - `train`, `test`, and `validation` if any was asked for: the images, in float32, and the
      number of each one's class, in int32.
    - `classes`: the name of each class.
    - `shape`: of an image: channels, height, width.
    - `mean`, `std`: what was subtracted from each channel, and what it was divided by then.
    """

    name: str
    train: Examples
    validation: Examples | None
    test: Examples
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: Float32[np.ndarray, " channels"]
    std: Float32[np.ndarray, " channels"]

    def restore(self, images: ArrayLike) -> Float32[np.ndarray, "images channels height width"]:
        """Images to look at, in [0, 1], of such as these: normalised or not, flat or not, one
        or many, from the data or from a network. Values beyond black and white are clipped.
        """
        images = np.reshape(np.asarray(images, np.float32), (-1, *self.shape))
        return np.clip(images * _by_channel(self.std) + _by_channel(self.mean), 0, 1)


def load(
    name: str,
    *,
    normalise: bool = True,
    flatten: bool = False,
    validation: int | float = 0,
    root: Root = None,
    download: bool = True,
    progress: bool = True,
) -> Dataset:
    """Loads a data set: from `root`, from `JPC_DATA_DIR`, from the user's cache, or from the
    network into that cache. Every file is compared with its published checksum.

    **Arguments:**

    - `name`: one of [`jpc.data.NAMES`][].
    - `normalise`: whether to shift and scale each channel so that all published training
      images, those for validation included, have mean 0 and standard deviation 1. Otherwise
      pixels are in [0, 1].
    - `flatten`: whether images are vectors, rather than of shape (channels, height, width).
    - `validation`: how many training examples to set apart, or which fraction of them if it is
      below 1. They are chosen at random, always the same ones, in proportion to the classes.
    - `root`: a folder to look in first.
    - `download`: whether to download what is not found.
    - `progress`: whether to show a progress bar for that, on a terminal.

    **Returns:**

    A [`jpc.data.Dataset`][].
    """
    source = source_of(name)
    place = fetch(name, root=root, progress=progress) if download else find(name, root)
    train, test = source.parse(read(place, source.contents), source.shape)
    train, held_out = _set_apart(train, validation)
    mean, std = _statistics(source, normalise)
    prepare = lambda raw: _prepare(raw, source.white, mean, std, flatten)
    return Dataset(
        name=name,
        train=prepare(train),
        validation=None if held_out is None else prepare(held_out),
        test=prepare(test),
        classes=source.classes,
        shape=source.shape,
        mean=mean,
        std=std,
    )


def _set_apart(train: Raw, validation: int | float) -> tuple[Raw, Raw | None]:
    images, labels = train
    count = round(validation * len(labels)) if validation < 1 else validation
    if not (0 <= count < len(labels) and count == int(count)):
        raise ValueError(
            f"validation={validation} of {len(labels)} training examples: write a number of "
            "examples that leaves some to train with, or a fraction below 1."
        )
    if count == 0:
        return train, None
    chosen = stratified(labels, int(count))
    return (images[~chosen], labels[~chosen]), (images[chosen], labels[chosen])


def _statistics(source: Source, normalise: bool) -> tuple[np.ndarray, np.ndarray]:
    mean, std = np.asarray(source.mean, np.float32), np.asarray(source.std, np.float32)
    return (mean, std) if normalise else (np.zeros_like(mean), np.ones_like(std))


def _prepare(raw: Raw, white: int, mean: np.ndarray, std: np.ndarray, flatten: bool) -> Examples:
    images, labels = raw[0].astype(np.float32), raw[1].astype(np.int32)
    images /= white
    images -= _by_channel(mean)
    images /= _by_channel(std)
    return images.reshape(len(images), -1) if flatten else images, labels


def _by_channel(values: np.ndarray) -> np.ndarray:
    return values[:, None, None]
