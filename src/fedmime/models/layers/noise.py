"""Dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


def dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    r"""Zero each element with probability `rate`, scale the others by $1 / (1 - \text{rate})$.

    The first axis of x is its examples. An example's mask depends on the key and its place only: two calls with one
    key share it whatever x holds and however many examples follow.
    The rate is taken to the nearest 1/256 where that is exact (0.25, 0.5), else to the nearest 1/65536.
    """
    bits = 8 if (256.0 * rate).is_integer() else 16
    kept = max(1, round((1.0 - rate) * 2**bits))
    if kept == 2**bits:
        return x
    return jnp.where(_mask(key, x.shape, kept, bits), x * (2**bits / kept), 0.0)


def _mask(key: jax.Array, shape: Sequence[int], kept: int, bits: int) -> jax.Array:
    """True with probability kept / 2^bits, from 32 / bits elements per random word.

    The loop over the parts of a word has a purpose: XLA fuses through anything else, and would then draw the mask
    again in every expression that reads it (a quarter of a CNN's step).
    """
    rows, size, per_word = shape[0], math.prod(shape[1:]), 32 // bits
    words = jax.random.bits(key, (rows, -(-size // per_word)), jnp.uint32)

    def part(_: None, shift: jax.Array) -> tuple[None, jax.Array]:
        return None, ((words >> shift) & jnp.uint32(2**bits - 1)) < jnp.uint32(kept)

    parts = lax.scan(part, None, jnp.arange(0, 32, bits, dtype=jnp.uint32))[1]
    return jnp.moveaxis(parts, 0, 1).reshape(rows, -1)[:, :size].reshape(shape)
