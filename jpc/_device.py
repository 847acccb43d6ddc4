import jax


def accelerated() -> bool:
    """Whether the device has a host to wait for. It does so at every turn of a loop without a
    fixed length, at every check of its numbers, and a little for everything it is told to start.
    """
    return jax.default_backend() != "cpu"


def rounds_products() -> bool:
    """Whether products of float32 matrices are rounded to fewer digits than they have, as
    accelerators do unless JAX was told otherwise.
    """
    precise = jax.config.jax_default_matmul_precision in ("float32", "highest")  # pyright: ignore
    return accelerated() and not precise
