import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PRNGKeyArray, Shaped

from .._given import as_batch, check_count, check_flags, show, split_key
from .._types import Given


def augment(
    key: Given[PRNGKeyArray],
    images: Given[ArrayLike],
    *,
    flip: Given[bool] = True,
    pad: Given[int] = 4,
) -> Shaped[Array, "images channels height width"]:
    """Flips images left to right and shifts them, each at random by itself. For training, and
    for use inside `jax.jit` and `jax.lax.scan`.

    **Arguments:**

    - `key`: a key of `jax.random`.
    - `images`: of shape (images, channels, height, width).
    - `flip`: whether to flip half of the images. Digits and letters should not be.
    - `pad`: how many zeros to put around an image before it is cropped to its size at random.
      In normalised images zero is the mean colour.

    **Returns:**

    As many images, of the same shape and type.

    **Example:**

    ```python
    import jax

    import jpc.data

    images, labels = jpc.data.load("digits").train
    moved = jpc.data.augment(jax.random.key(0), images[:8], flip=False, pad=1)
    ```
    """
    check_flags(flip=flip)
    check_count("pad", pad, least=0)
    images = as_batch("images", images)
    if images.ndim != 4:
        raise ValueError(
            f"Images of shape {images.shape} cannot be flipped and cropped. Their shape must be "
            "(images, channels, height, width), that of jpc.data.load(name, flatten=False)."
        )
    if pad >= min(images.shape[2:]):
        raise ValueError(
            f"pad is {show(pad)}, and nothing of an image of {images.shape[2]} x "
            f"{images.shape[3]} may be left: give less."
        )
    keys = split_key(key, len(images))
    return jax.vmap(lambda key, image: _augment(key, image, flip, pad))(keys, images)


def _augment(key: PRNGKeyArray, image: Array, flip: bool, pad: int) -> Array:
    flip_key, crop_key = jax.random.split(key)
    if flip:
        image = jnp.where(jax.random.bernoulli(flip_key), jnp.flip(image, axis=-1), image)
    padded = jnp.pad(image, ((0, 0), (pad, pad), (pad, pad)))
    row, column = jax.random.randint(crop_key, (2,), 0, 2 * pad + 1)
    return jax.lax.dynamic_slice(padded, (0, row, column), image.shape)
