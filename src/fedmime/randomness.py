"""Seeded random number generators of NumPy, without global state.

Philox is a counter-based generator: each (seed, index) is a key of its own, and each purpose has its own stream, a part
of the counter. So the numbers of a round or a client can be drawn in any order, and do not depend on what was drawn
before.
"""

from __future__ import annotations

import numpy as np

from fedmime.errors import ConfigError


def generator(seed: int, index: int = 0, stream: int = 0) -> np.random.Generator:
    """A generator whose numbers depend on its arguments alone.

    Args:
        seed: the run's seed, in [0, 2^64).
        index: what the numbers are for, such as a round or a client, in [0, 2^64).
        stream: the purpose; streams of the same seed and index are independent.
    """
    for label, value in (("seed", seed), ("index", index)):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not 0 <= value < 2**64:
            raise ConfigError(f"{label} must be an integer in [0, 2**64), got {value!r}")
    key, counter = np.array([seed, index], np.uint64), np.array([0, 0, 0, stream], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
