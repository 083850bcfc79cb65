"""A run's schedule: who is drawn for a round, and which mini-batches each client takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from fedmime.algorithms.algorithm import Algorithm
from fedmime.engine.backends.specification import Expected
from fedmime.engine.cohort import Batches, Cohort, Columns, Member, given, with_starts
from fedmime.engine.participation import RELIABLE, Participation
from fedmime.engine.sampling import generator, mini_batches


class Clients(Protocol):
    """What a run needs of a population; see `fedmime.data.Population`."""

    @property
    def sizes(self) -> np.ndarray: ...
    @property
    def test(self) -> Mapping[str, np.ndarray] | None: ...
    def client_at(self, index: int) -> Mapping[str, np.ndarray]: ...


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How cohorts are drawn and how long their clients train; a pure function of seed and round."""

    cohort_size: int
    batch_size: int | None
    epochs: int | None
    steps: int | None
    seed: int
    weights: str
    participation: Participation = RELIABLE

    def lengths(self, sizes: np.ndarray) -> np.ndarray:
        """The numbers of local steps of clients with so many examples."""
        if self.steps is not None:
            return np.full(len(sizes), self.steps)
        batches = np.ones(len(sizes), int) if self.batch_size is None else -(-sizes // self.batch_size)
        return (self.epochs or 1) * batches

    def expected(self, population: Clients, rounds: int) -> Expected:
        """What a run will ask of its back end."""
        sizes = population.sizes[population.sizes > 0]
        return Expected(population, self.cohort_size, rounds, self.lengths(sizes))

    def cohort(self, algorithm: Algorithm, population: Clients, round_number: int) -> Cohort:
        """The cohort of a round; without members if too few clients reported."""
        if check := getattr(population, "check", None):  # mapped files may have been cut since the last round
            check()
        available = np.flatnonzero(population.sizes)
        if algorithm.pooled:
            return self._pooled(population, available, round_number)
        drawn = self.participation.draw(population.sizes, self.cohort_size, self.seed, round_number).clients
        if not self.participation.enough(len(drawn), self.cohort_size):
            drawn = drawn[:0]
        trainers = len(drawn) // 2 if algorithm.split else len(drawn)
        sizes = population.sizes[drawn]
        steps = np.where(np.arange(len(drawn)) < trainers, self.lengths(sizes), 0)
        members = [
            Member(int(client), int(n), int(k), 0, probes=not algorithm.split or k == 0)
            for client, n, k in zip(drawn, sizes, steps, strict=True)
        ]
        probing = sum(m.probes for m in members)
        even = self.weights == "uniform"
        return Cohort(
            with_starts(members),
            len(available),
            _Drawn(self, population, round_number, drawn),
            batch_size=self.batch_size or int(sizes.max(initial=1)),
            each_once=self.steps is None and self.epochs == 1,
            weights=np.ones(trainers) if even else None,
            gradient_weights=np.ones(probing) if even else None,
            ids=getattr(population, "ids", None),
        )

    def batches(self, round_number: int, client: int, examples: int) -> Batches:
        """The mini-batches of a client in a round."""
        random = generator(self.seed, round_number, client)
        return Batches(*mini_batches(examples, self.batch_size, self.epochs, self.steps, random))

    def _pooled(self, population: Clients, available: np.ndarray, round_number: int) -> Cohort:
        """One client with as many examples as an average cohort has, drawn i.i.d. from everybody's data."""
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
        batches = Batches(*mini_batches(n, self.batch_size, self.epochs, self.steps, random))
        cohort = given([(Member(0, n, len(batches.counts), 0, probes=True), data, batches)], len(available))
        return dataclasses.replace(cohort, ids=("pooled",))


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """The data of a cohort's members: read from the population when it is asked for."""

    schedule: Schedule
    population: Clients
    round: int
    clients: np.ndarray

    def examples(self, place: int) -> Columns:
        return self.population.client_at(int(self.clients[place]))

    def batches(self, place: int) -> Batches:
        client = int(self.clients[place])
        return self.schedule.batches(self.round, client, int(self.population.sizes[client]))
