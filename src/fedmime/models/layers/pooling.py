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
    return _largest(even.reshape(batch, height // 2, 2, width // 2, 2, channels))


@jax.custom_vjp
def _largest(squares: jax.Array) -> jax.Array:
    return _find(squares)[0]


def _find(squares: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The largest of each square, and which it is: 0, 1 in the first row, 2, 3 in the second."""
    top, right = _larger(squares[:, :, 0, :, 0], squares[:, :, 0, :, 1])
    bottom, lower_right = _larger(squares[:, :, 1, :, 0], squares[:, :, 1, :, 1])
    largest, low = _larger(top, bottom)
    return largest, jnp.where(low, 2 + lower_right.astype(jnp.int32), right.astype(jnp.int32))


def _larger(first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The larger value, and whether it is the second: on equality it is the first."""
    other = (second > first) | jnp.isnan(second)
    return jnp.where(other, second, first), other


def _back(place: jax.Array, d: jax.Array) -> tuple[jax.Array]:
    """Every entry of a square looks whether it was the largest: XLA would put four padded arrays together instead."""
    places = jnp.arange(4, dtype=place.dtype).reshape(2, 1, 2, 1)
    return (jnp.where(place[:, :, None, :, None] == places, d[:, :, None, :, None], 0),)


_largest.defvjp(_find, _back)
