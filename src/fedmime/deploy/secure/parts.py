"""From the arrays of an exchange to one row of integers, and from the sum of such rows back to arrays.

The messages of an exchange are its full gradients, one at each point, and the update. Each is a part that is clipped on
its own. Both sides know the parts before anything is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedmime.deploy.secure.fixed_point import Layout, Scaled, Words, levels_of, shortened, step_of, words_of
from fedmime.deploy.secure.options import MaskError, SecureSum


class Part(NamedTuple):
    """A message as the server expects it."""

    shapes: Sequence[jax.ShapeDtypeStruct]
    """Of its arrays."""
    largest: Sequence[float]
    """For each array the largest weight of a client of the group, by which the others are divided; 1 where arrays are
    summed unweighted."""
    norm: float
    """C, to which clients clip the message."""

    @property
    def entries(self) -> int:
        """Numbers of all arrays."""
        return sum(math.prod(shape.shape) for shape in self.shapes)


def layout_of(parts: Sequence[Part], scalars: int, clients: int, options: SecureSum) -> Layout:
    """The layout of a client's message in a group of so many.

    Raises:
        ConfigError: `options.bits` are too few for so many entries.
    """
    for part in parts:
        shortened(part.norm, part.entries, options)
    return Layout(sum(part.entries for part in parts), scalars, options.width(clients))


def words_of_parts(
    messages: Sequence[Scaled],
    scalars: Sequence[float],
    options: SecureSum,
    random: Sequence[np.random.Generator],
) -> Words:
    """The client's half: its messages, clipped and rounded, in one row.

    Args:
        messages: the arrays of each part, and their weights.
        scalars: what is summed beside them.
        random: a generator for each part, which decides its rounding.

    Raises:
        MaskError: something is not finite.
    """
    levels = [levels_of(message, options, draw) for message, draw in zip(messages, random, strict=True)]
    return words_of(np.concatenate([*levels, np.zeros(0, np.int64)]), scalars)


def sums_of_parts(
    levels: np.ndarray, parts: Sequence[Part], clients: int, options: SecureSum
) -> list[list[np.ndarray]]:
    """The server's half: for each part the weighted sums of its arrays.

    Args:
        levels: the sums of the clients' integers [entries].
        parts: what was asked for.
        clients: how many messages were added.

    Raises:
        MaskError: the sum of an array is longer than that of so many clipped messages: somebody did not clip.
    """
    sums, start = [], 0
    for part in parts:
        sums.append([])
        for shape, largest in zip(part.shapes, part.largest, strict=True):
            size = math.prod(shape.shape)
            total = levels[start : start + size] * step_of(part.norm, options)
            start += size
            if np.linalg.norm(total) > clients * part.norm * (1 + 1e-9):
                raise MaskError(f"the sum of {clients} messages clipped to {part.norm:g} is longer than possible")
            sums[-1].append((total * largest).astype(shape.dtype).reshape(shape.shape))
    return sums
