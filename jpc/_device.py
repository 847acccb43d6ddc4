import jax


def accelerated() -> bool:
    """Whether the device has a host to wait for. It does so at every turn of a loop without a
    fixed length, at every check of its numbers, and a little for everything it is told to start.
    """
    return jax.default_backend() != "cpu"
