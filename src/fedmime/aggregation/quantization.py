"""Quantization: each weight is rounded at random, without bias, to one of a few levels.

The random bits come from a hash of (key, index of the weight) instead of `jax.random`: inside a compiled round, on one
core, Threefry alone would cost three times as much as everything else that quantizing does.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedmime.aggregation.encoder import Encoded, Encoder, Sender, Shapes
from fedmime.aggregation.wire import Integers, encodable, storage
from fedmime.errors import ConfigError
from fedmime.hyperparameters import recipe, static
from fedmime.validation import flag, quote, whole

UNCHANGED = 32  # bits, for which messages are not quantized
_BLOCK = 4096  # largest number of weights that are rotated together
_RADIX = 16  # a Walsh-Hadamard transform of a block is done by products with matrices of this size


@recipe
class Quantize(Encoder):
    """Stochastic uniform quantization as a recipe; `quantize` explains its arguments."""

    last: ClassVar[bool] = True
    downward: ClassVar[bool] = True

    bits: int = static()
    rotate: bool = static()

    def encode(self, values: list[jax.Array], sender: Sender) -> Encoded:
        """Integers instead of the arrays; the side holds the two numbers that describe the levels of each array."""
        sent, side, start = [], [], 0
        rounding, signs = _words(sender)
        for value in values:
            numbers, scale = value, None
            if self._changes(value):
                v = value.ravel().astype(_precise(value))
                if self.rotate:
                    v = _rotate(v, random_bits(signs, start, v.size))
                levels, scale = self._levels(v)
                numbers = _round(levels, random_bits(rounding, start, v.size), 2**self.bits - 1)
                numbers = Integers(numbers.astype(storage(self.bits)).reshape(value.shape), self.bits)
                start += v.size
            sent.append(numbers)
            side.append(scale)
        return Encoded(sent, side)

    def decode(self, encoded: Encoded, like: Shapes, sender: Sender) -> list[jax.Array]:
        decoded, start = [], 0
        _, signs = _words(sender)
        for value, scale, shape in zip(encoded.values, encoded.side, like, strict=True):
            v = value
            if self._changes(shape):
                v = self._at_levels(value.numbers.ravel().astype(_precise(shape)), scale)
                if self.rotate:
                    v = _rotate_back(v, random_bits(signs, start, v.size))
                v = v.astype(shape.dtype).reshape(shape.shape)
                start += v.size
            decoded.append(v)
        return decoded

    @property
    def changes_nothing(self) -> bool:
        return self.bits == UNCHANGED

    def _changes(self, value: jax.Array | jax.ShapeDtypeStruct) -> bool:
        """Whether an array is quantized: not with 32 bits, nor where the scale would cost more than is saved."""
        if self.bits == UNCHANGED or not encodable(value):
            return False
        scale = 2 * _precise(value).itemsize
        return -(-value.size * self.bits // 8) + scale < value.size * value.dtype.itemsize

    @property
    def _zero_is_a_level(self) -> bool:
        """Two levels cannot span a range and include zero; after a rotation hardly any weight is zero."""
        return self.bits > 1 and not self.rotate

    @property
    def _steps(self) -> int:
        """How many steps between levels the range of the weights is divided into.

        Where zero is a level, one step is kept back: the smallest and the largest weight may both lie between levels.
        """
        return 2**self.bits - (2 if self._zero_is_a_level else 1)

    def _levels(self, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The weights in units of steps, counted from the lowest level, and what `_at_levels` needs to undo it.

        Weights are divided by the range before they are multiplied: the inverse of a tiny range would overflow.
        """
        low, high = v.min(), v.max()
        if self._zero_is_a_level:
            low, high = jnp.minimum(low, 0), jnp.maximum(high, 0)
        extent = high - low
        divisor = jnp.where(extent == 0, 1, extent)
        if self._zero_is_a_level:
            zero = jnp.ceil(-low / divisor * self._steps)  # the number of the level that is zero
            return v / divisor * self._steps + zero, jnp.stack([extent, zero])
        return (v - low) / divisor * self._steps, jnp.stack([extent, low])

    def _at_levels(self, numbers: jax.Array, scale: jax.Array) -> jax.Array:
        """The values of the levels with the given numbers."""
        extent, other = scale
        if not self._zero_is_a_level:
            return numbers / self._steps * extent + other
        steps = numbers - other
        # XLA divides by multiplying with the inverse, which may miss the ends of a range, and so constant arrays.
        return jnp.where(jnp.abs(steps) == self._steps, jnp.sign(steps), steps / self._steps) * extent


def quantize(bits: int, rotate: bool = False) -> Quantize:
    r"""Stochastic uniform quantization: `bits` bits for each weight, and two numbers for each array.

    A weight between two neighbouring levels $a \le v \le b$ becomes $b$ with probability $(v - a) / (b - a)$, else $a$,
    so that its expectation is $v$. The levels of an array are evenly spaced between its smallest and its largest
    weight, or zero if that lies outside, and one of them is zero. So weights that are zero stay zero (in updates, those
    of inputs that a client's data never use), and no weight changes its sign. For an update of an MLP in which 71 % of
    the first layer's weights are zero, this has a third of the squared error of levels spaced from end to end at 2 and
    4 bits, and two thirds at 8 bits. With 1 bit, the two levels are the smallest and the largest weight. An array whose
    weights are all equal is decoded exactly. Arrays of so few weights that nothing would be saved are sent unchanged.

    With `rotate`, an array is multiplied by a random orthogonal matrix first, and by its inverse after decoding. The
    rotated weights are all of similar size, so their range is small: for the same update, the squared error is a sixth
    with 1 bit and less than half with 2 to 8 bits. Neither zeros nor signs nor constant arrays are kept, so it is not
    for statistics that must not be negative. The matrix changes signs at random and applies Walsh-Hadamard transforms
    to blocks of up to 4096 consecutive weights. Where the last block would have to be padded, the last weights of the
    array, as many as a block has, are transformed a second time instead, so that nothing extra is sent.

    Args:
        bits: from 1 to 16, or 32 for messages that are not changed at all.
        rotate: whether to rotate first.

    Reference: Suresh et al., 2017, Distributed mean estimation with limited communication,
    https://arxiv.org/abs/1611.00429
    """
    if not whole(bits) or (not 1 <= bits <= 16 and bits != UNCHANGED):
        raise ConfigError(f"quantize: bits must be a whole number from 1 to 16, or 32, got {quote(bits)}")
    return Quantize(int(bits), flag("quantize", "rotate", rotate))


def random_bits(words: jax.Array, start: int, count: int) -> jax.Array:
    """32 random bits for each index from `start` on [count], a function of the index and of two random words [2].

    The index is multiplied by an odd number near 2^32 divided by the golden ratio, which separates neighbours, and
    mixed twice by the finalizer of MurmurHash3. The second word enters between the two: otherwise the sequences of two
    senders would be the same one, shifted. The bits are good enough to round with; they keep no secrets.
    """
    index = lax.iota(jnp.uint32, count) + np.uint32(start)
    return _mix(_mix(index * np.uint32(0x9E3779B9) + words[0]) ^ words[1])


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of 32-bit words in which every bit of the input changes about half of the output's bits."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _words(sender: Sender) -> jax.Array:
    """Two pairs of random words [2, 2]: for rounding and for the signs of the rotation."""
    return jax.random.bits(sender.key, (2, 2), jnp.uint32)


def _precise(value: jax.Array | jax.ShapeDtypeStruct) -> np.dtype:
    """The type to compute with and to send scales in: the array's own, but at least float32."""
    return np.dtype(jnp.promote_types(value.dtype, jnp.float32))


def _round(levels: jax.Array, bits: jax.Array, highest: int) -> jax.Array:
    """Round up with the probability of the fractional part.

    Comparing a random number with the fraction is exact. Adding it and rounding down would not be: the sum of a whole
    number and a fraction just below one may round to the next whole number, and zeros would not stay zero.
    """
    used = 24 if levels.dtype == jnp.float32 else 32  # as many bits as the type represents exactly
    below = jnp.floor(levels)
    uniform = (bits >> (32 - used)).astype(levels.dtype) * 2.0**-used
    rounded = below + (uniform < levels - below)
    return jnp.clip(rounded, 0, highest)  # the arithmetic of `_levels` may end a last digit outside


def _block(count: int) -> int:
    """How many of `count` weights are rotated together: a power of two."""
    return min(_BLOCK, 1 << (count.bit_length() - 1))


def _rotate(v: jax.Array, bits: jax.Array) -> jax.Array:
    """Rotate block by block, then the last weights [block] once more if the blocks did not reach them all."""
    size, block = len(v), _block(len(v))
    whole_blocks = size - size % block
    v = _signed(v, bits)
    v = jnp.concatenate([_hadamard(v[:whole_blocks], block), v[whole_blocks:]])
    if whole_blocks == size:
        return v
    last = _signed(v[size - block :], bits[size - block :] << 1)
    return jnp.concatenate([v[: size - block], _hadamard(last, block)])


def _rotate_back(v: jax.Array, bits: jax.Array) -> jax.Array:
    """The inverse of `_rotate`: its steps are their own inverses and are done in reverse order."""
    size, block = len(v), _block(len(v))
    whole_blocks = size - size % block
    if whole_blocks < size:
        last = _signed(_hadamard(v[size - block :], block), bits[size - block :] << 1)
        v = jnp.concatenate([v[: size - block], last])
    return _signed(jnp.concatenate([_hadamard(v[:whole_blocks], block), v[whole_blocks:]]), bits)


def _signed(v: jax.Array, bits: jax.Array) -> jax.Array:
    """Change the sign of the weights whose highest random bit is set."""
    return jnp.where(bits >> 31 == 1, -v, v)


def _hadamard(v: jax.Array, block: int) -> jax.Array:
    """The orthonormal Walsh-Hadamard transform of every block of a flat array; it is its own inverse.

    The matrix is a Kronecker product of small ones. Each stage applies one of them to the last axis and moves this axis
    to the front; when all bits of the index have gone round, the order is the original one.
    """
    blocks, done = len(v) // block, 1
    while done < block:
        radix = min(_RADIX, block // done)
        stage = v.reshape(blocks, block // radix, radix) @ _matrix(radix).astype(v.dtype)
        v, done = jnp.swapaxes(stage, 1, 2), done * radix
    return v.reshape(blocks * block)


def _matrix(size: int) -> np.ndarray:
    """The orthonormal Walsh-Hadamard matrix [size, size] of a power of two."""
    index = np.arange(size)
    odd = np.bitwise_count(index[:, None] & index) % 2
    return (1.0 - 2.0 * odd) / np.sqrt(size)
