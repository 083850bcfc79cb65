"""Max-pooling by comparisons, several times faster on a CPU than `reduce_window` and its backward scatter."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def max_pool2x2(x: jax.Array) -> jax.Array:
    """The largest of every 2 x 2 square, stride 2: [batch, height, width, channels] to half the height and width.

    An odd last row or column is left out. Equal values: the gradient goes to the first in reading order, to it alone,
    as for `lax.reduce_window`. NaN stays NaN.
    """
    batch, height, width, channels = x.shape
    even = x[:, : height // 2 * 2, : width // 2 * 2]
    squares = even.reshape(batch, height // 2, 2, width // 2, 2, channels)
    top = _larger(squares[:, :, 0, :, 0], squares[:, :, 0, :, 1])
    bottom = _larger(squares[:, :, 1, :, 0], squares[:, :, 1, :, 1])
    return _larger(top, bottom)


def _larger(first: jax.Array, second: jax.Array) -> jax.Array:
    """The larger value; on equality the first, which `jnp.maximum` would not do for the gradient."""
    return jnp.where((second > first) | jnp.isnan(second), second, first)
