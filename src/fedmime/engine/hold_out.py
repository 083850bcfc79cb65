"""Examples held out of each client's data, for clients that have no test data of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fedmime.engine.cohort import Columns
from fedmime.randomness import generator

_STREAM = 41  # of random numbers; mini-batches and cohorts use others


@dataclasses.dataclass(frozen=True)
class Part:
    """The same clients with a part of their examples. What is drawn depends on the seed and the client alone.

    Attributes:
        population: the clients with all of their examples.
        fraction: of a client's n examples, round(fraction n) are held out, at least one and at most n - 1; of a single
            example none is.
        seed: of the draw.
        held: whether these are the examples held out, or the others.
    """

    population: Any
    fraction: float
    seed: int
    held: bool

    @cached_property
    def sizes(self) -> np.ndarray:
        """The numbers of examples [clients]."""
        held = self._held(self.population.sizes)
        return held if self.held else self.population.sizes - held

    @property
    def ids(self) -> Sequence[str] | None:
        """The clients' names, if they have any."""
        return getattr(self.population, "ids", None)

    def client_at(self, index: int) -> Columns:
        """The columns of the client at a position; examples stay in their order."""
        n = int(self.population.sizes[index])
        order, held = generator(self.seed, index, _STREAM).permutation(n), int(self._held(np.asarray(n)))
        rows = np.sort(order[:held] if self.held else order[held:])
        return {name: column[rows] for name, column in self.population.client_at(index).items()}

    def _held(self, sizes: np.ndarray) -> np.ndarray:
        wanted = np.rint(self.fraction * sizes).astype(np.int64)
        return np.where(sizes < 2, 0, np.clip(wanted, 1, np.maximum(sizes - 1, 1)))
