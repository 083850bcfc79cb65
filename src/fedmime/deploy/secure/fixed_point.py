"""Messages as integers, so that masks cancel exactly and sums have no rounding errors.

A client clips its message to a norm C and rounds every entry at random, without bias, to a multiple of
C / (2^(bits − 1) − 1). The levels do not depend on the message, so the sum of the integers is the integer of the sum.
Sums are taken modulo a power of two that no sum of a whole group can reach, so they are exact.

Beside the entries go a few scalars of 64 bits each, such as the loss. The first one is 1 for every client, so that its
sum tells whether all masks were removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import jax
import numpy as np

from fedmime.aggregation import wire
from fedmime.deploy.secure.options import WORD, MaskError, SecureSum
from fedmime.deploy.secure.primitives import random_bytes
from fedmime.errors import ConfigError

_SCALAR_STEP = 2.0**-20
_MOST_SCALAR = 2.0**32  # larger ones are cut off, so that no sum over a group reaches 2^63 steps


class Layout(NamedTuple):
    """How many numbers a message has, and how wide they are; both sides derive it."""

    entries: int
    scalars: int
    """Without the one that counts clients."""
    width: int
    """Bits of an entry when it is sent."""

    def wire(self) -> list[wire.Integers | jax.ShapeDtypeStruct]:
        """What is sent of `Words`, as shapes."""
        entries = jax.ShapeDtypeStruct((self.entries,), np.dtype(wire.storage(self.width)))
        return [wire.Integers(entries, self.width), jax.ShapeDtypeStruct((1 + self.scalars,), np.dtype(np.uint64))]

    @property
    def nbytes(self) -> int:
        """Bytes of a packed message."""
        return wire.nbytes(self.wire())


class Words(NamedTuple):
    """A message, a mask or a sum of them; additions wrap round."""

    entries: np.ndarray
    """[entries] uint32"""
    scalars: np.ndarray
    """[1 + scalars] uint64, the number of clients first."""

    @classmethod
    def zeros(cls, layout: Layout) -> Self:
        """The sum of no messages."""
        return cls(np.zeros(layout.entries, np.uint32), np.zeros(1 + layout.scalars, np.uint64))

    @classmethod
    def mask(cls, seed: bytes, layout: Layout) -> Self:
        """Pseudo-random words that follow from a seed."""
        middle = layout.entries * 4
        data = random_bytes(seed, middle + (1 + layout.scalars) * 8)
        return cls(data[:middle].view("<u4").astype(np.uint32), data[middle:].view("<u8").astype(np.uint64))

    def plus(self, other: Words) -> Words:
        """The sum, modulo the powers of two that the words hold."""
        return Words(self.entries + other.entries, self.scalars + other.scalars)

    def minus(self, other: Words) -> Words:
        """The difference, modulo the same."""
        return Words(self.entries - other.entries, self.scalars - other.scalars)

    def pack(self, layout: Layout) -> bytes:
        """The bytes that are sent: of each entry only as many bits as the sum needs."""
        lowest = (self.entries & np.uint32((1 << layout.width) - 1)).astype(wire.storage(layout.width))
        return wire.pack([wire.Integers(lowest, layout.width), self.scalars])

    @classmethod
    def unpack(cls, data: bytes, layout: Layout) -> Self:
        """What was packed; every string of the right length is a message.

        Raises:
            MaskError: the length is another one.
        """
        if len(data) != layout.nbytes:
            raise MaskError(f"a masked message must have {layout.nbytes} bytes, got {len(data)}")
        entries, scalars = wire.unpack(data, layout.wire())
        return cls(entries.numbers.astype(np.uint32), scalars)


class Scaled(NamedTuple):
    """The arrays of a message that are clipped together, with the weight of each array."""

    arrays: Sequence[np.ndarray]
    """An array that stands here twice, for example to be averaged and to be summed, counts once in the norm."""
    weights: Sequence[float]
    """In [0, 1]: a client's weight divided by the largest one of the group; 1 for arrays that are summed unweighted."""
    norm: float
    """C, the largest Euclidean norm of all different arrays together."""


def step_of(norm: float, options: SecureSum) -> float:
    """The distance of neighbouring levels of messages that are clipped to a norm."""
    return norm / ((1 << (options.bits - 1)) - 1)


def shortened(norm: float, entries: int, options: SecureSum) -> float:
    """The norm to clip to so that rounding, which moves each entry by less than a step, cannot exceed `norm`.

    Raises:
        ConfigError: so many entries need more bits.
    """
    loss = entries**0.5 * step_of(norm, options)
    if loss > norm / 4:
        accepted = f"more bits for messages of {entries} entries: rounding alone may move one by {loss / norm:.2g} C"
        raise ConfigError(f"secure: bits must be larger, got {options.bits}; give {accepted}")
    return norm - loss


def levels_of(message: Scaled, options: SecureSum, random: np.random.Generator) -> np.ndarray:
    """The integers of a message [entries], int64, none of them longer than `options.bits` bits.

    Whatever the arrays hold, the integers of all different arrays have a norm of at most `message.norm` divided by the
    step.

    Args:
        random: decides the rounding.

    Raises:
        MaskError: the message is not finite. Nobody could find out after it was masked.
    """
    flat, different = _row(message.arrays), _row({id(array): array for array in message.arrays}.values())
    largest = np.abs(flat).max(initial=0.0)
    if not np.isfinite(largest):
        raise MaskError("the message has entries that are NaN or infinite")
    length = largest * float(np.linalg.norm(different / largest)) if largest else 0.0  # squares could overflow
    most = shortened(message.norm, flat.size, options)
    weights = np.repeat(np.asarray(message.weights, np.float64), [np.size(array) for array in message.arrays])
    scaled = flat * min(1.0, most / length if length else 1.0) * weights / step_of(message.norm, options)
    below = np.floor(scaled)
    return (below + (random.random(flat.size) < scaled - below)).astype(np.int64)


def _row(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """The entries of all arrays [entries], float64."""
    return np.concatenate([*(np.asarray(array, np.float64).ravel() for array in arrays), np.zeros(0)])


def words_of(levels: np.ndarray, scalars: Sequence[float]) -> Words:
    """A client's message, before it is masked. Negative integers wrap round.

    Args:
        levels: integers from `levels_of` [entries].
        scalars: numbers that are summed beside them; what is larger than 2^32 is cut off.

    Raises:
        MaskError: a scalar is not finite.
    """
    values = np.asarray(scalars, np.float64)
    if not np.isfinite(values).all():
        raise MaskError(f"scalars must be finite, got {values.tolist()}")
    steps = np.rint(np.clip(values, -_MOST_SCALAR, _MOST_SCALAR) / _SCALAR_STEP).astype(np.int64)
    counted = np.concatenate([np.ones(1, np.int64), steps])
    return Words(levels.astype(np.uint32), counted.astype(np.uint64))


def total_of(words: Words, layout: Layout, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """The sums that unmasked words hold: integers [entries], int64, and scalars [scalars], float64.

    Args:
        clients: how many messages were added.

    Raises:
        MaskError: a mask was not removed, because a client sent wrong shares.
    """
    if int(words.scalars[0]) != clients:
        raise MaskError("the masks do not cancel: a client sent wrong shares")
    shift = WORD - layout.width
    entries = (words.entries << np.uint32(shift)).view(np.int32) >> shift
    return entries.astype(np.int64), words.scalars[1:].view(np.int64) * _SCALAR_STEP
