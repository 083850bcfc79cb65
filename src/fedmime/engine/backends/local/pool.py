"""A population whose examples stay on the devices for a whole run, instead of being copied for every round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from jax.sharding import Mesh

from fedmime.engine.backends.local.devices import replicate

MOST_RESIDENT_BYTES = 256 << 20  # bytes of examples that every device holds a copy of


class Pool(NamedTuple):
    """All examples of a population on the devices."""

    columns: Mapping[str, jax.Array]
    """[examples, ...]"""
    starts: np.ndarray
    """[clients] position of each client's first example."""

    @classmethod
    def of(cls, population: Any, rounds: int, cohort_size: int, mesh: Mesh) -> Self | None:
        """The pool of a population in memory, if it is small and a run reads at least as much of it as is copied."""
        sizes = population.sizes
        often = rounds * cohort_size * sizes.mean() >= sizes.sum()
        if not getattr(population, "resident", False) or not often:
            return None
        there = int(np.flatnonzero(sizes)[0])
        example = sum(column.nbytes for column in population.client_at(there).values()) / sizes[there]
        if example * sizes.sum() > MOST_RESIDENT_BYTES:
            return None
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        return cls(replicate(population.pool(), mesh), starts)
