"""A run's plan for its clients: who is drawn for a round and which mini-batches each takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from fedmime import native
from fedmime.algorithms.algorithm import Algorithm
from fedmime.engine.cohort import Cohort, Member
from fedmime.engine.participation import RELIABLE, Participation
from fedmime.engine.sampling import generator, mini_batches
from fedmime.errors import ClientError


class Clients(Protocol):
    """What a run needs of a population; see `fedmime.data.Population`."""

    @property
    def sizes(self) -> np.ndarray: ...
    @property
    def test(self) -> Mapping[str, np.ndarray] | None: ...
    def client_at(self, index: int) -> Mapping[str, np.ndarray]: ...


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How cohorts are drawn and how long their clients train."""

    cohort_size: int
    batch_size: int | None
    epochs: int | None
    steps: int | None
    seed: int
    weights: str
    participation: Participation = RELIABLE

    def lengths(self, sizes: np.ndarray) -> np.ndarray:
        """The local steps of clients with so many examples."""
        if self.steps is not None:
            return np.full(len(sizes), self.steps)
        batches = np.ones(len(sizes)) if self.batch_size is None else np.ceil(sizes / self.batch_size)
        return (self.epochs or 1) * batches

    def cohort(self, algorithm: Algorithm, population: Clients, round_number: int) -> Cohort:
        """The cohort of a round: without members if too few clients reported."""
        if check := getattr(population, "check", None):  # mapped files may have been cut since the last round
            check()
        available = np.flatnonzero(population.sizes)
        if algorithm.pooled:
            return self._pooled(population, available, round_number)
        drawn = self.participation.draw(population.sizes, self.cohort_size, self.seed, round_number).clients
        if not self.participation.enough(len(drawn), self.cohort_size):
            return Cohort((), len(available))
        trainers = len(drawn) // 2 if algorithm.split else len(drawn)
        members, unfit = [], {}
        for i, index in enumerate(drawn.tolist()):
            part = {"trains": i < trainers, "probes": not algorithm.split or i >= trainers}
            try:
                members.append(self._member(population, index, round_number, **part))
            except ClientError as error:
                unfit[index] = str(error)
        cohort = Cohort(tuple(members), len(available), ids=getattr(population, "ids", None), unfit=unfit)
        if self.weights == "examples":
            return cohort
        ones = {"weights": np.ones(len(cohort.training)), "gradient_weights": np.ones(len(cohort.probing))}
        return dataclasses.replace(cohort, **ones)

    def _member(self, population: Clients, index: int, round_number: int, trains: bool, probes: bool) -> Member:
        native.give_way()
        data = population.client_at(index)
        n = int(population.sizes[index])
        if not trains:
            return Member(index, data, n)
        random = generator(self.seed, round_number, index)
        rows, counts = mini_batches(n, self.batch_size, self.epochs, self.steps, random)
        return Member(index, data, n, rows, counts, probes)

    def _pooled(self, population: Clients, available: np.ndarray, round_number: int) -> Cohort:
        """As many examples as an average cohort has, drawn i.i.d. from everybody's data."""
        random = generator(self.seed, round_number)
        sizes = population.sizes[available]
        n = max(1, round(self.cohort_size * float(sizes.mean())))
        owners, times = np.unique(random.choice(available, n, p=sizes / sizes.sum()), return_counts=True)
        parts = []
        for owner, k in zip(owners, times, strict=True):
            data = population.client_at(int(owner))
            picked = random.integers(0, population.sizes[owner], k)
            parts.append({name: column[picked] for name, column in data.items()})
        data = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        rows, counts = mini_batches(n, self.batch_size, self.epochs, self.steps, random)
        return Cohort((Member(0, data, n, rows, counts),), len(available), ids=("pooled",))
