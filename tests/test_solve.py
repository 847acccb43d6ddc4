import jax
import jax.numpy as jnp
import numpy as np

from jpc._solve import solve


def test_two_batches_at_the_same_time_do_not_wait_for_each_other():
    """On two cores a batch of 64 factorisations beside another never ended. (Oracle: NumPy.)"""
    rng = np.random.default_rng(0)
    matrices = rng.normal(size=(6, 64, 20, 20)) + 10 * np.eye(20)
    right = rng.normal(size=(6, 64, 20))
    at_once = jax.jit(lambda a, b: [jax.vmap(solve)(*pair) for pair in zip(a, b, strict=True)])
    for _ in range(200):
        solved = jax.block_until_ready(at_once(matrices, right))
    expected = np.linalg.solve(matrices, right[..., None])[..., 0]
    np.testing.assert_allclose(solved, expected, atol=1e-12)


def test_derivatives():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 4, 4)) + 4 * np.eye(4), rng.normal(size=(2, 4))
    total = lambda fn: lambda a, b: jnp.sum(jax.vmap(fn)(a, b) ** 3)
    ours, theirs = (jax.grad(total(fn), (0, 1))(a, b) for fn in (solve, jnp.linalg.solve))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-14), ours, theirs)
