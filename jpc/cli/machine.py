import importlib.metadata
import os
import platform
from typing import Any

import jax

import jpc

_PACKAGES = ("jax", "jaxlib", "equinox", "diffrax", "optax", "optimistix", "lineax", "numpy")


def machine() -> dict[str, Any]:
    """What a run runs on."""
    devices = jax.devices()
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    return {
        "jpc": jpc.__version__,
        "python": platform.python_version(),
        "packages": ", ".join(versions),
        "devices": f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})",
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }
