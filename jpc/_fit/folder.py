import os
from typing import Any

from .._given import show


def check_folder(name: str, folder: Any, *, none: bool = False) -> Any:
    """That it is the path of a folder: an empty one would be the folder in which one stands."""
    if none and folder is None:
        return None
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(
            f"{name} must be the path of a folder, such as 'runs/1', got {show(folder)}."
        )
    if not os.fspath(folder):
        raise ValueError(f"{name} is empty: write the path of a folder, such as 'runs/1'.")
    if os.fspath(folder).startswith("~"):
        raise ValueError(
            f"{name} begins with ~, which only a shell replaces, so that a folder of that name "
            f"would be made here: write pathlib.Path({show(os.fspath(folder))}).expanduser()."
        )
    if "\0" in os.fspath(folder):
        raise ValueError(f"{name} has a NUL in it, as no path can: got {show(folder)}.")
    return folder
