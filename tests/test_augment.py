"""Flips and crops on the device, against all those that NumPy makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jpc.data

IMAGES = np.random.default_rng(0).normal(size=(200, 2, 5, 6)).astype(np.float32)


def variants(image, flip, pad):
    """Every flip and crop of an image. They differ: the pixels are random."""
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)))
    _, height, width = image.shape
    return {
        (step, i, j): padded[:, :, ::step][:, i : i + height, j : j + width]
        for step in ((1, -1) if flip else (1,))
        for i in range(2 * pad + 1)
        for j in range(2 * pad + 1)
    }


@pytest.mark.parametrize("flip, pad", [(True, 0), (True, 1), (True, 3), (False, 1), (False, 3)])
def test_augmented_images_are_flips_and_crops(flip, pad):
    augmented = np.asarray(jpc.data.augment(jax.random.key(0), IMAGES, flip=flip, pad=pad))
    found = []
    for image, result in zip(IMAGES, augmented, strict=True):
        possible = variants(image, flip, pad)
        found += [which for which, variant in possible.items() if np.array_equal(variant, result)]
    assert len(found) == len(IMAGES)
    steps, rows, columns = np.array(found).T
    assert set(rows) == set(columns) == set(range(2 * pad + 1))
    assert abs(np.sum(steps == -1) - 100 * flip) < 30  # Its standard deviation is 7.
    varied = [values for values in (steps, rows, columns) if np.ptp(values)]
    correlations = np.atleast_2d(np.corrcoef(varied)) - np.eye(len(varied))
    assert np.all(np.abs(correlations) < 0.25)  # Their standard deviation is 0.07.


def test_without_flip_and_pad_images_stay():
    augmented = jpc.data.augment(jax.random.key(0), IMAGES, flip=False, pad=0)
    np.testing.assert_array_equal(augmented, IMAGES)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "uint8"])
def test_the_type_stays(dtype):
    images = jnp.asarray(IMAGES, dtype)
    assert jpc.data.augment(jax.random.key(0), images).dtype == images.dtype


def test_scan_and_vmap_give_what_single_calls_give():
    keys, batches = jax.random.split(jax.random.key(3), 4), IMAGES.reshape(4, 50, 2, 5, 6)
    augment = jax.jit(jpc.data.augment)
    one_by_one = jnp.stack([augment(key, x) for key, x in zip(keys, batches, strict=True)])
    step = lambda _, batch: (None, jpc.data.augment(*batch))
    np.testing.assert_array_equal(jax.lax.scan(step, None, (keys, batches))[1], one_by_one)
    np.testing.assert_array_equal(jax.jit(jax.vmap(jpc.data.augment))(keys, batches), one_by_one)


def test_the_key_decides():
    augment = jax.jit(jpc.data.augment)
    first, again, other = (augment(jax.random.key(k), IMAGES) for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    "shape, pad, message",
    [((5, 64), 4, r"\(5, 64\).*flatten=False"), ((5, 1, 8, 8), -1, "pad must be .* got -1")],
)
def test_what_cannot_be_augmented(shape, pad, message):
    with pytest.raises(ValueError, match=message):
        jpc.data.augment(jax.random.key(0), np.zeros(shape), pad=pad)
