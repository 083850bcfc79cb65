"""Seeded generators: Philox keyed by a seed and an index (a round, a client), one stream per purpose."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from fedmime.errors import ConfigError


def generator(seed: int, index: int = 0, stream: int = 0) -> np.random.Generator:
    """Random numbers that depend on nothing but seed, index and stream; no global state, no history."""
    for label, value in (("seed", seed), ("index", index)):
        whole = type(value) is int or (isinstance(value, int | np.integer) and not isinstance(value, bool))
        if not whole or not 0 <= value < 2**64:
            raise ConfigError(f"{label} must be an integer in [0, 2**64), got {value!r}")
    key: Any = _Key(seed, index)
    return np.random.Generator(np.random.Philox(key, counter=_counter(stream)))


@functools.cache
def _counter(stream: int) -> np.ndarray:
    """Where a stream begins; generators copy it."""
    return np.array([0, 0, 0, stream], np.uint64)


class _Key(ISeedSequence):
    """What Philox takes as its key. With `key=` it would first ask the system for random numbers and drop them."""

    def __init__(self, seed: int, index: int) -> None:
        self._words = np.array([seed, index], np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        assert n_words == len(self._words)
        return self._words
