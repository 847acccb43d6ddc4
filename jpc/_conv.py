from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ._device import accelerated


class Conv2d(eqx.nn.Conv2d):
    """As `equinox.nn.Conv2d`, with the same arguments, and fast on a CPU in loops, such as those
    of [`jpc.fit`][], flows and descent. There XLA's convolutions take ten times as long as they
    could, or more. So on a CPU it is a product of matrices: of the weights, and of all patches of
    the image. (It then holds the patches in memory. They are as many times as large as the image
    as the kernel has pixels.)

    **Example**, after [these lines](index.md#the-examples):

    ```python
    conv = jpc.Conv2d(3, 8, kernel_size=3, padding=1, key=jax.random.key(0))
    features = conv(jnp.ones((3, 32, 32)))  # Of one image.
    ```
    """

    def __init__(self, *args: Any, **named: Any):
        super().__init__(*args, **named)

    def __call__(self, x: Array, *, key: PRNGKeyArray | None = None) -> Array:
        plain = self.groups == 1 and self.padding_mode == "ZEROS"
        fits = x.ndim == 3 and len(x) == self.in_channels
        if accelerated() or isinstance(self.padding, str) or not (plain and fits):
            return super().__call__(x, key=key)
        x = jnp.pad(x, ((0, 0), *cast(Any, self.padding)))
        rows, columns = (self._meets(axis, side) for axis, side in enumerate(x.shape[1:]))
        if not (rows and columns):
            raise ValueError(f"The image, padded to {x.shape[1:]}, is smaller than the kernel.")
        met = jnp.stack([x[:, row, column] for row in rows for column in columns], axis=1)
        weight = self.weight.reshape(self.out_channels, -1)
        made = weight @ met.reshape(weight.shape[1], -1)
        made = made.reshape(-1, *met.shape[2:])
        return made if self.bias is None else made + self.bias

    def _meets(self, axis: int, side: int) -> list[slice]:
        """For each pixel of the kernel the rows (or columns) of the image that it meets."""
        size, stride, apart = (x[axis] for x in (self.kernel_size, self.stride, self.dilation))
        free = side - (size - 1) * apart
        return [slice(i * apart, i * apart + free, stride) for i in range(size) if free > 0]
