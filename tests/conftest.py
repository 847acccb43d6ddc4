"""Strict JAX, and every annotation of the package checked at run time."""

import os

# Tests compile far more than they run: a third of their time goes without LLVM's optimisations.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

with install_import_hook("jpc", "beartype.beartype"):
    import jpc._api
    import jpc.data._api  # noqa: F401


@pytest.fixture(autouse=True, scope="module")
def forget():
    """A process that keeps the programs of all files crashes at some thousands of them."""
    yield
    jax.clear_caches()
