import functools as ft

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._device import accelerated


def solve(matrix: Array, right: Array) -> Array:
    """The solution of a system of linear equations, or of several with the same matrix.

    On the CPU the matrices of a batch are taken one by one, here and below. There JAX shares a
    batch out to the threads that programs run on, and waits: two batches at the same time wait
    for each other for ever.
    """
    if accelerated():
        return jnp.linalg.solve(matrix, right)
    product = ft.partial(jnp.matmul, matrix, precision=jax.lax.Precision.HIGHEST)
    return jax.lax.custom_linear_solve(
        product,
        right,
        lambda _, right: _solve_one(matrix, right),
        lambda _, right: _solve_one(matrix.T, right),
    )


def whiten(matrix: Array, rows: Array) -> Array:
    r"""$L^{-1}$ times some rows, where $L L^T$ is a positive definite matrix."""
    return _whiten(matrix, rows) if accelerated() else _whiten_one(matrix, rows)


def _whiten(matrix: Array, rows: Array) -> Array:
    return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(matrix), rows, lower=True)


_whiten_one = jax.custom_batching.sequential_vmap(_whiten)


@jax.custom_batching.sequential_vmap
def _solve_one(matrix: Array, right: Array) -> Array:
    return jnp.linalg.solve(matrix, right)


def eigenvalues(H: Array, A: Array) -> Array:
    """Of the product of two symmetric matrices without negative eigenvalues: real, and none
    negative, the smallest first.
    """
    return _eigenvalues(H, A) if accelerated() else _eigenvalues_one(H, A)


def _eigenvalues(H: Array, A: Array) -> Array:
    values, vectors = jnp.linalg.eigh(H)
    root = vectors * jnp.sqrt(jnp.maximum(values, 0))[None]
    between = jnp.matmul(jnp.matmul(root.T, A, precision="highest"), root, precision="highest")
    return jnp.maximum(jnp.linalg.eigvalsh(between), 0)


_eigenvalues_one = jax.custom_batching.sequential_vmap(_eigenvalues)
