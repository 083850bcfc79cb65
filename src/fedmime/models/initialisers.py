"""Initial values of weights, in the default float type (float64 when `jax_enable_x64` is on)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp


def uniform(key: jax.Array, shape: Sequence[int], limit: float) -> jax.Array:
    """Numbers uniform in [-limit, limit]."""
    return jax.random.uniform(key, shape, float, minval=-limit, maxval=limit)


def glorot(key: jax.Array, shape: Sequence[int], fan_in: int, fan_out: int) -> jax.Array:
    r"""Glorot uniform weights: uniform in $\pm\sqrt{6 / (\text{fan in} + \text{fan out})}$."""
    return uniform(key, shape, math.sqrt(6.0 / (fan_in + fan_out)))


def dense(key: jax.Array, inputs: int, outputs: int) -> dict[str, jax.Array]:
    """The parameters of a dense layer: weights w [out, in], Glorot uniform, and biases b [out], zero."""
    return {"w": glorot(key, (outputs, inputs), inputs, outputs), "b": jnp.zeros(outputs, float)}


def conv(key: jax.Array, size: int, inputs: int, outputs: int) -> dict[str, jax.Array]:
    """The parameters of a convolution: kernel w [size, size, in, out], Glorot uniform, and biases b [out], zero."""
    area = size * size
    kernel = glorot(key, (size, size, inputs, outputs), area * inputs, area * outputs)
    return {"w": kernel, "b": jnp.zeros(outputs, float)}


def lstm(key: jax.Array, inputs: int, hidden: int) -> dict[str, jax.Array]:
    """The parameters of an LSTM layer, gates in the order i, f, g, o.

    These are w [in, 4 hidden], Glorot uniform; u [hidden, 4 hidden], orthogonal, which preserves the norm of h over
    time; and b [4 hidden], zero but one for the forget gate, so that cells remember at the beginning.
    """
    first, second = jax.random.split(key)
    gates = jnp.zeros((4, hidden), float).at[1].set(1.0)
    return {
        "w": glorot(first, (inputs, 4 * hidden), inputs, 4 * hidden),
        "u": jax.nn.initializers.orthogonal()(second, (hidden, 4 * hidden), float),
        "b": gates.reshape(-1),
    }
