"""Strict JAX, and every annotation of the package checked at run time."""

import jax
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

with install_import_hook("jpc", "beartype.beartype"):
    import jpc
    import jpc.data  # noqa: F401
