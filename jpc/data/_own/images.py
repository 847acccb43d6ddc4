import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..._extras import TRAIN
from .found import PARTS, DataError, Found, Like, NoTargetsError, Part, check_size

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # Others run other programs.
_OTHERS = (".csv", ".tsv", ".npz", ".npy")
_MOST_PIXELS = 2**26
_LARGEST, _SCALED = 64, 32  # The longest side of images that are kept, and of scaled ones.


def read_images(path: Path, size: int | None, like: Like | None, *, classes: bool = True) -> Found:
    """A folder of images in class folders, perhaps below `train` and `test`. New data may be
    one image, or images in no class folder; so may data without classes.
    """
    whole = files = _list_parts(path)
    if like is None and classes:
        files = {part: _in_classes(path, listed) for part, listed in files.items()}
    every = [file for listed in files.values() for file in listed]
    if not every:
        other = next((p for p in sorted(path.iterdir()) if p.suffix.lower() in _OTHERS), None)
        hint = f" Did you mean {other}?" if other else ""
        raise DataError(f"{path} has no images ({', '.join(ENDINGS)}).{hint}")
    left_out = sum(map(len, whole.values())) - len(every)
    shape, note = _choose_shape(list(every), size) if like is None else (like.shape, "")
    if len(shape) != 3:
        raise DataError(f"{path} has images, but the network takes {math.prod(shape)} features.")
    check_size(str(path), len(every) * math.prod(shape))
    parts = {part: _read_part(path, listed, shape) for part, listed in files.items() if listed}
    said = f"{left_out} image{'s are' if left_out > 1 else ' is'} in no class folder, and left out"
    said = said if left_out else ""
    note = "; ".join(filter(None, (said, note)))
    return Found(parts, targets=("class",), note=note, white=255)


def _list_parts(path: Path) -> dict[str, dict[Path, str]]:
    """The images of each part, with their classes."""
    if path.is_file():
        return {"train": {path: ""}}
    folders = {PARTS.get(p.name.lower(), ""): p for p in path.iterdir() if p.is_dir()}
    folders = {part: folder for part, folder in folders.items() if part}
    folders = folders if "train" in folders else {"train": path}
    return {
        part: {file: _class_of(file, folder) for file in list_images(folder)}
        for part, folder in folders.items()
    }


def _in_classes(path: Path, listed: dict[Path, str]) -> dict[Path, str]:
    found = {file: name for file, name in listed.items() if name}
    if listed and not found:
        file = next(iter(listed))
        if path.is_file():
            raise DataError(f"{path} is one image: give a folder, with a folder for each class.")
        raise NoTargetsError(
            f"{file} is in no class folder: put it into {path}/CLASS/{file.name}, "
            "or learn without classes (--task unsupervised, target=())."
        )
    return found


def _read_part(path: Path, listed: dict[Path, str], shape: tuple[int, ...]) -> Part:
    names = [str(f.relative_to(path)) if path.is_dir() else f.name for f in listed]
    classes = np.array(list(listed.values()))
    pixels = np.stack([_read_image(file, shape) for file in listed])
    return Part(pixels, classes if all(listed.values()) else None, names)


def _class_of(file: Path, folder: Path) -> str:
    inside = file.relative_to(folder).parts
    return inside[0] if len(inside) > 1 else ""


def list_images(folder: Path) -> list[Path]:
    """All images below a folder, but not what is hidden. Other files do not matter."""
    files = (p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS and p.is_file())
    hidden = lambda file: any(part.startswith(".") for part in file.relative_to(folder).parts)
    return sorted(file for file in files if not hidden(file))


def _choose_shape(files: list[Path], size: int | None) -> tuple[tuple[int, ...], str]:
    """Channels, height and width of all images: their own, unless they differ or are large."""
    seen = set()
    for file in files:
        with _open_image(file) as image:
            turned = image.getexif().get(0x0112, 1) >= 5
            seen.add((image.mode, image.size[:: -1 if turned else 1]))
    grey = all(mode in ("1", "L", "LA") or mode.startswith("I") for mode, _ in seen)
    sizes, channels = {shape for _, shape in seen}, 1 if grey else 3
    width, height = next(iter(sizes))
    if size is None and len(sizes) == 1 and max(width, height) <= _LARGEST:
        return (channels, height, width), ""
    side = _SCALED if size is None else size
    note = "" if sizes == {(side, side)} else f"scaled to {side} x {side}"
    return (channels, side, side), note


@contextmanager
def _open_image(file: Path) -> Iterator[Any]:
    try:
        from PIL import Image  # noqa: PLC0415
    except ImportError:
        raise ImportError(f"To read images, {TRAIN}.") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=_FORMATS) as image:
                if math.prod(image.size) > _MOST_PIXELS:
                    what = f"{image.size[0]} x {image.size[1]} pixels"
                    raise DataError(f"{file} has {what}: scale it down, or leave it out.")
                if image.mode == "F":
                    what = "fractions, of which black and white are not known"
                    raise DataError(f"{file} has {what}: save 8 or 16 bits, or all as an npz.")
                yield image
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise DataError(f"{file} has too many pixels: scale it down, or leave it out.") from None
    except (OSError, SyntaxError, ValueError) as error:
        if isinstance(error, DataError) or getattr(error, "errno", None):
            raise
        reason = (
            "not an image, or one of an unknown format"
            if "cannot identify" in str(error)
            else error
        )
        raise DataError(f"{file} cannot be read: {reason}. Delete it, or mend it.") from None


def _read_image(file: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The pixels of an image, 0 to 255, as channels, height and width."""
    from PIL import Image, ImageOps  # noqa: PLC0415

    channels, height, width = shape
    with _open_image(file) as opened:
        image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I"):  # 16 bits; Pillow would cut off what is above 255.
            image = Image.fromarray((np.asarray(image) // 257).clip(0, 255).astype(np.uint8))
        image = image.convert("L" if channels == 1 else "RGB")
        image = image if image.size == (width, height) else ImageOps.fit(image, (width, height))
        pixels = np.asarray(image)
    return pixels[None] if channels == 1 else np.moveaxis(pixels, -1, 0)
