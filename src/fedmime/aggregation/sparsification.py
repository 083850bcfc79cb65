"""Sparsification: only some weights of each array are sent; the others are decoded as zero."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedmime.aggregation.encoder import Encoded, Encoder, Sender, Shapes
from fedmime.aggregation.quantization import random_bits
from fedmime.aggregation.wire import Integers, encodable, storage
from fedmime.hyperparameters import recipe, static
from fedmime.validation import SHARE, real


@recipe
class RandomK(Encoder):
    """Encoder for random-k sparsification. It holds the validated argument of `random_k`."""

    amplifies: ClassVar[bool] = True

    fraction: float = static()

    def encode(self, values: list[jax.Array], sender: Sender) -> Encoded:
        """The chosen weights [k] of each array."""
        return Encoded(
            [
                value if groups is None else value.ravel()[groups.positions]
                for value, groups in zip(values, self._groups(values, sender), strict=True)
            ]
        )

    def decode(self, encoded: Encoded, like: Shapes, sender: Sender) -> list[jax.Array]:
        return [
            value if groups is None else groups.spread(value).astype(shape.dtype).reshape(shape.shape)
            for value, shape, groups in zip(encoded.values, like, self._groups(like, sender), strict=True)
        ]

    @property
    def changes_nothing(self) -> bool:
        return self.fraction == 1

    def _groups(self, values: list[jax.Array] | Shapes, sender: Sender) -> list[_Groups | None]:
        """The groups of each array and the choice in them; None for arrays that are sent whole."""
        words, start, groups = jax.random.bits(sender.key, (2,), jnp.uint32), 0, []
        for value in values:
            count = _count(value, self.fraction) if encodable(value) else None
            if count is None or count == value.size:
                groups.append(None)
                continue
            groups.append(_Groups(value.size, count, random_bits(words, start, count)))
            start += count
        return groups


class _Groups:
    """Weights cut into `count` groups of consecutive ones, and a weight chosen in each.

    The first `larger` groups have `size + 1` weights, the others `size`.
    """

    def __init__(self, weights: int, count: int, bits: jax.Array) -> None:
        self.count, self.size, self.larger = count, weights // count, weights % count
        number = lax.iota(jnp.uint32, count)
        self.starts = number * np.uint32(self.size) + jnp.minimum(number, np.uint32(self.larger))
        # A remainder of 32 random bits prefers small numbers by size / 2^32 at most.
        self.chosen = bits % jnp.where(number < self.larger, np.uint32(self.size + 1), np.uint32(self.size))

    @property
    def positions(self) -> jax.Array:
        """Positions of the chosen weights [count], ascending."""
        return self.starts + self.chosen

    def spread(self, values: jax.Array) -> jax.Array:
        """All weights, of which the chosen ones are `values` [count] times the size of their groups.

        Groups of equal size are rows of a matrix, which is written at once; a scatter would be slower.
        """
        cut = self.larger
        return jnp.concatenate(
            [
                _one_hot(values[:cut], self.chosen[:cut], self.size + 1),
                _one_hot(values[cut:], self.chosen[cut:], self.size),
            ]
        )


def _one_hot(values: jax.Array, chosen: jax.Array, size: int) -> jax.Array:
    """Groups of `size` weights, flat, with `size * values` at the chosen places and zeros elsewhere."""
    here = chosen[:, None] == lax.iota(jnp.uint32, size)
    return jnp.where(here, (values * size)[:, None], 0).ravel()


def random_k(fraction: float) -> RandomK:
    r"""Send a random fraction of the weights of each array, without their positions.

    The $n$ weights of an array are cut into $k = \text{fraction} \cdot n$ groups of consecutive ones, whose sizes
    differ by at most one. The client sends one weight of each group, drawn by the message's random key; the server
    derives the positions from the same key and multiplies each weight by the size of its group. The expectation of the
    decoded array is the array, and the expected squared error is $(n / k - 1) \lVert v \rVert^2$ for groups of equal
    size, as it is for $k$ weights drawn from the whole array. Encoding costs $O(k)$, without a sort.

    What is sent are floating-point arrays [k], which `quantize` may encode further.

    Args:
        fraction: share of the weights, in (0, 1]; at least one weight of each array is sent. With 1, nothing changes.

    Reference: Konečný et al., 2016, https://arxiv.org/abs/1610.05492 (random masks)
    """
    return RandomK(real("random_k", "fraction", fraction, SHARE))


@recipe
class TopK(Encoder):
    """Encoder for top-k sparsification. It holds the validated argument of `top_k`."""

    fraction: float = static()
    unbiased: ClassVar[bool] = False

    def encode(self, values: list[jax.Array], sender: Sender) -> Encoded:
        """The largest weights [k] of each array; the side holds their positions."""
        sent, side = [], []
        for value in values:
            chosen, positions = value, None
            if self._cuts(value):
                _, where = lax.top_k(jnp.abs(value.ravel()), _count(value, self.fraction))
                bits = _position_bits(value)
                chosen, positions = value.ravel()[where], Integers(where.astype(storage(bits)), bits)
            sent.append(chosen)
            side.append(positions)
        return Encoded(sent, side)

    def decode(self, encoded: Encoded, like: Shapes, sender: Sender) -> list[jax.Array]:
        return [
            # A position beyond the end, which only a faulty client sends, is ignored.
            jnp.zeros(shape.size, shape.dtype).at[places.numbers].set(value, mode="drop").reshape(shape.shape)
            if self._cuts(shape)
            else value
            for value, places, shape in zip(encoded.values, encoded.side, like, strict=True)
        ]

    @property
    def changes_nothing(self) -> bool:
        return self.fraction == 1

    def _cuts(self, value: jax.Array | jax.ShapeDtypeStruct) -> bool:
        """Whether only part of an array is sent: not where the positions would cost more than is saved."""
        if not encodable(value):
            return False
        count, size = _count(value, self.fraction), value.dtype.itemsize
        return count * size + -(-count * _position_bits(value) // 8) < value.size * size


def _count(value: jax.Array | jax.ShapeDtypeStruct, fraction: float) -> int:
    """How many weights of an array are sent; at least one, so that no array is lost altogether."""
    return min(value.size, max(1, round(fraction * value.size)))


def _position_bits(value: jax.Array | jax.ShapeDtypeStruct) -> int:
    """Bits of a position in an array."""
    return max(1, (value.size - 1).bit_length())


def top_k(fraction: float) -> TopK:
    r"""Send the weights of largest magnitude of each array, with their positions.

    It is biased: the weights that are not sent are lost unless the client keeps them for its next message (error
    feedback). Per weight sent it has the least error of all choices. A position among $n$ weights takes
    $\lceil \log_2 n \rceil$ bits. Arrays of which it would not save any bytes are sent unchanged.

    What is sent are floating-point arrays [k], which `quantize` may encode further. On a CPU it costs more than the
    other encoders, and the more the larger the fraction: it has to sort what it sends.

    Args:
        fraction: share of the weights, in (0, 1]; at least one weight of each array is sent. With 1, nothing changes.

    Reference: Stich et al., 2018, https://arxiv.org/abs/1809.07599
    """
    return TopK(real("top_k", "fraction", fraction, SHARE))
