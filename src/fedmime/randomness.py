"""Seeded generators: Philox keyed by a seed and an index (a round, a client), one stream per purpose."""

from __future__ import annotations

import numpy as np

from fedmime.errors import ConfigError


def generator(seed: int, index: int = 0, stream: int = 0) -> np.random.Generator:
    """Random numbers that depend on nothing but seed, index and stream; no global state, no history."""
    for label, value in (("seed", seed), ("index", index)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 0 <= value < 2**64:
            raise ConfigError(f"{label} must be an integer in [0, 2**64), got {value!r}")
    key = np.array([seed, index], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, stream], np.uint64)))
