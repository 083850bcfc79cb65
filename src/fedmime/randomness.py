"""Seeded random number generators of NumPy, without global state.

Philox is a counter-based generator: each (seed, index) is a key of its own, and each purpose has its own stream, a part
of the counter. So the numbers of a round or a client can be drawn in any order, and do not depend on what was drawn
before.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from fedmime.errors import ConfigError


def generator(seed: int, index: int = 0, stream: int = 0) -> np.random.Generator:
    """A generator whose numbers depend on its arguments alone.

    Args:
        seed: the run's seed, in [0, 2^64).
        index: what the numbers are for, such as a round or a client, in [0, 2^64).
        stream: the purpose; streams of the same seed and index are independent.
    """
    for label, value in (("seed", seed), ("index", index)):
        whole = type(value) is int or (isinstance(value, int | np.integer) and not isinstance(value, bool))
        if not whole or not 0 <= value < 2**64:
            raise ConfigError(f"{label} must be an integer in [0, 2**64), got {value!r}")
    key: Any = _Key(seed, index)
    return np.random.Generator(np.random.Philox(key, counter=_counter(stream)))


@functools.cache
def _counter(stream: int) -> np.ndarray:
    """The counter at which a stream begins. Generators copy it, so that one array serves all."""
    return np.array([0, 0, 0, stream], np.uint64)


class _Key(ISeedSequence):
    """A key for Philox in the form of a seed sequence.

    With its argument `key`, Philox would first draw entropy from the operating system and discard it; a run makes a
    generator for every client of every round.
    """

    def __init__(self, seed: int, index: int) -> None:
        self._words = np.array([seed, index], np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """The two 64-bit words of the key; Philox asks for exactly as many."""
        assert n_words == len(self._words)
        return self._words
