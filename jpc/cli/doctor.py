"""What is found on this machine, and what to do about what is not."""

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from .. import __version__
from .._extras import TRAIN
from .machine import machine

# Distributions of the extra `train`, by the module that each of them has.
_TRAIN = {
    "matplotlib": "matplotlib",
    "orbax.checkpoint": "orbax-checkpoint",
    "PIL": "pillow",
    "pooch": "pooch",
    "rich": "rich",
    "tqdm": "tqdm",
    "typer": "typer",
}


class Examination(NamedTuple):
    """What was found, by name, and a piece of advice for each thing that is missing."""

    found: dict[str, Any]
    advice: list[str]

    def page(self) -> str:
        said = {**self.found, **self.found["data"]}
        del said["data"]
        width = max(map(len, said))
        lines = [f"{name:{width}}  {_words(value)}" for name, value in said.items()]
        return "\n".join([*lines, "", *(self.advice or ["Nothing is missing."])])


def _words(value: Any) -> str:
    return "not on this machine" if value is None else str(value)


def examine(places: Mapping[str, str | None]) -> Examination:
    """Looks at devices, precision, cache, extras and data.

    **Arguments:**

    - `places`: where each data set is, `None` for one that is not on this machine.
    """
    missing = [name for module, name in _TRAIN.items() if not _is_there(module)]
    config: Any = jax.config
    cache = config.jax_compilation_cache_dir
    seen, platform = _look()
    found = seen | {
        "precision": "float64" if config.jax_enable_x64 else "float32",
        "cache": cache or "off",
        "extras": f"train, without {', '.join(missing)}" if missing else "train",
        "data": dict(places),
    }
    advice = [
        (bool(missing), f"{', '.join(missing)}: {TRAIN}."),
        (platform is None, "JAX finds no device: unset JAX_PLATFORMS, or mend what it asks for."),
        (_idle_gpu(platform), "There is a GPU that JAX does not use: pip install 'jax[cuda13]'."),
        (not cache, "Programs are compiled anew each time: set JAX_COMPILATION_CACHE_DIR."),
        *((place is None, f"{name}: jpc data fetch {name}") for name, place in places.items()),
    ]
    return Examination(found, [text for wrong, text in advice if wrong])


def _look() -> tuple[dict[str, Any], str | None]:
    """The machine and its platform, if JAX finds one."""
    try:
        return machine(), jax.default_backend()
    except (RuntimeError, AssertionError):
        return {"jpc": __version__, "devices": "none"}, None


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # Its package is not there.
        return False


def _idle_gpu(platform: str | None) -> bool:
    found = os.path.exists("/proc/driver/nvidia/version") or shutil.which("nvidia-smi")
    return platform == "cpu" and bool(found)
