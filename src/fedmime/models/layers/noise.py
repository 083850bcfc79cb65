"""Dropout, with masks that are cheap to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


def dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    r"""Set each element to zero with probability `rate` and scale the others by $1 / (1 - \text{rate})$.

    The mask of an example depends on the key and its place in the batch only. So two calls with one key have the same
    mask, whatever x holds and however many examples follow: Mime's gradients at x and at y then differ by the model
    alone.

    Args:
        x: activations; the first axis are the examples.
        rate: probability in [0, 1), rounded to the nearest 1/256 where that is exact (0.25, 0.5), else to the nearest
            1/65536.
        key: random key of the step.
    """
    bits = 8 if (256.0 * rate).is_integer() else 16
    survivors = max(1, round((1.0 - rate) * 2**bits))
    if survivors == 2**bits:
        return x
    return jnp.where(_mask(key, x.shape, survivors, bits), x * (2**bits / survivors), 0.0)


def _mask(key: jax.Array, shape: Sequence[int], survivors: int, bits: int) -> jax.Array:
    """A boolean mask that is true with probability survivors / 2^bits.

    Each 32-bit random word serves 32 / bits elements, because random bits are the expensive part. The loop over the
    parts of a word is needed: XLA fuses any other expression into its consumers, and would then draw the mask again for
    each of them, which took a quarter of a CNN's step.

    Args:
        shape: [examples, ...]; each example begins with a new word.
        survivors: elements out of 2^bits that survive.
        bits: bits of a word per element, 8 or 16.
    """
    rows, size, per_word = shape[0], math.prod(shape[1:]), 32 // bits
    words = jax.random.bits(key, (rows, -(-size // per_word)), jnp.uint32)

    def part(_: None, shift: jax.Array) -> tuple[None, jax.Array]:
        return None, ((words >> shift) & jnp.uint32(2**bits - 1)) < jnp.uint32(survivors)

    parts = lax.scan(part, None, jnp.arange(0, 32, bits, dtype=jnp.uint32))[1]
    return jnp.moveaxis(parts, 0, 1).reshape(rows, -1)[:, :size].reshape(shape)
