"""Predictive coding networks in JAX. Its names are those of `jpc/_api.py`."""

from typing import TYPE_CHECKING

from ._lazy import lazily

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ._api import *  # noqa: F403
else:
    __getattr__, __dir__ = lazily(__name__, "_api")
