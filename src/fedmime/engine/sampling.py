"""Sampling: which clients are drawn for a round, and for how long each of them trains.

Everything is a pure function of seed, round and client. It does not depend on which other clients take part or on which
device trains a client, so rounds can be prepared ahead of time and repeated exactly, and every back end computes the
same numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from fedmime.algorithms.algorithm import Algorithm
from fedmime.batching import generator, mini_batches
from fedmime.engine.backends.specification import Expected
from fedmime.engine.cohort import Batches, Cohort, Columns, Member, given, with_starts
from fedmime.engine.participation import RELIABLE, Participation
from fedmime.errors import DataError
from fedmime.validation import not_finite


class Clients(Protocol):
    """What a run needs of a population; see `fedmime.data.Population`.

    Attributes:
        sizes: the numbers of examples n_i [clients].
        test: the columns of the server's test set; None if there is none.
        client_at: returns the columns of the client at a position.

    A population may also have these attributes, which are looked up by name. Without one, the default applies.

    - `ids`: the clients' names by position; without it, a client is called by its position.
    - `name`, `identity()`: the name of the data, by default that of the class, and a digest of its content. Both are
      part of the identity of a run; workers of Ray compare the digest, too.
    - `check()`: raises `DataError` if the data has changed since it was opened; it is called before every cohort.
    - `elsewhere`: true if clients are real and look at their own data. Every client that was asked is then a member of
      the cohort, and who reports turns out in the round. Default: false.
    - `sampling_seed`: replaces the run's seed in the draw of cohorts, so that clients, who know the run's seed, cannot
      tell who else takes part.
    - `resident`: true if all examples are in memory. All of them are then checked before the first round, and a small
      population stays on the devices for the whole run. Default: false.
    - `pool()`: the columns of all clients one after another; needed if `resident` is true.
    - `test_clients`: a population with the clients' own test examples, for evaluations client by client.
    - `has_own_test`: false if `test` consists of the examples of `test_clients`, so that an evaluation need not read
      them twice. Default: true.
    - `portable()`: the population that is sent to workers of Ray; by default the population itself.
    - `origin`: the call that makes the population in another process (`fedmime.origin.Origin`). The module that it
      names must be the same on the driver and on workers of Ray.
    """

    @property
    def sizes(self) -> np.ndarray: ...
    @property
    def test(self) -> Mapping[str, np.ndarray] | None: ...
    def client_at(self, index: int) -> Mapping[str, np.ndarray]: ...


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How cohorts are drawn and how long their clients train; a pure function of seed and round.

    Attributes:
        cohort_size: number of clients in a round.
        batch_size: examples in a mini-batch; None takes all of a client's examples.
        epochs: local passes over a client's data, if `steps` is None.
        steps: local steps of every client, whatever its number of examples.
        seed: from which all random numbers of the run are derived.
        weights: `"examples"` weighs a client by n_i in means, `"uniform"` weighs all clients equally.
        participation: the sampler and its policy.
    """

    cohort_size: int
    batch_size: int | None
    epochs: int | None
    steps: int | None
    seed: int
    weights: str
    participation: Participation = RELIABLE

    @property
    def each_once(self) -> bool:
        """Whether the mini-batches of a client contain each of its examples exactly once."""
        return self.steps is None and self.epochs == 1

    def lengths(self, sizes: np.ndarray) -> np.ndarray:
        """K_i, the number of local steps, for clients with these numbers of examples [clients]."""
        if self.steps is not None:
            return np.full(len(sizes), self.steps)
        batches = np.ones(len(sizes), int) if self.batch_size is None else -(-sizes // self.batch_size)
        return (self.epochs or 1) * batches

    def expected(self, population: Clients, rounds: int) -> Expected:
        """What the run will ask of its back end, from which the back end can size its buffers."""
        sizes = population.sizes[population.sizes > 0]
        return Expected(population, self.cohort_size, rounds, self.lengths(sizes))

    def cohort(self, algorithm: Algorithm, population: Clients, round_number: int, losses: Any = ()) -> Cohort:
        """The cohort of a round. It is cancelled, without members, if too few clients reported.

        With split cohorts (`Algorithm.split`), the first half of the clients train and the others are asked for
        gradients.

        Args:
            algorithm: decides whether the cohort is split or pooled.
            population: the clients; their data is read later, when a back end asks for it.
            round_number: the round.
            losses: the clients' last losses [clients], for samplers that look at them; else `()`.
        """
        # Reading a memory-mapped file that was truncated since the last round would end the process by a bus error.
        if check := getattr(population, "check", None):
            check()
        available = np.flatnonzero(population.sizes)
        if algorithm.pooled:
            return self._pooled(population, available, round_number)
        seed = getattr(population, "sampling_seed", self.seed)
        reports = self.participation.draw(population.sizes, self.cohort_size, seed, round_number, losses)
        drawn = reports.in_time
        if getattr(population, "elsewhere", False):  # who is late turns out in the round
            drawn = np.concatenate([drawn, reports.late])
        cancelled = not self.participation.enough(len(drawn), self.cohort_size)
        if cancelled:
            drawn = drawn[:0]
        trainers = len(drawn) // 2 if algorithm.split else len(drawn)
        sizes = population.sizes[drawn]
        steps = np.where(np.arange(len(drawn)) < trainers, self.lengths(sizes), 0)
        members = [
            Member(int(client), int(n), int(k), 0, sends_gradient=not algorithm.split or not int(k))
            for client, n, k in zip(drawn, sizes, steps, strict=True)
        ]
        probing = sum(m.sends_gradient for m in members)
        even = self.weights == "uniform"
        return Cohort(
            with_starts(members),
            len(available),
            PopulationSource(self, population, round_number, drawn),
            batch_size=self.batch_size or int(sizes.max(initial=1)),
            each_once=self.each_once,
            weights=np.ones(trainers) if even else None,
            gradient_weights=np.ones(probing) if even else None,
            ids=getattr(population, "ids", None),
            planned=self.cohort_size,
            cancelled=cancelled,
        )

    def batches(self, round_number: int, client: int, examples: int) -> Batches:
        """The mini-batches of a client with so many examples in a round."""
        random = generator(self.seed, round_number, client)
        return Batches(*mini_batches(examples, self.batch_size, self.epochs, self.steps, random))

    def _pooled(self, population: Clients, available: np.ndarray, round_number: int) -> Cohort:
        """A cohort of a single client, whose examples are drawn i.i.d. from the data of all clients.

        It has as many examples as an average cohort, so that a round of centralized training processes as much data as
        a federated one. Only clients of which an example was drawn are read.
        """
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
        if next(not_finite(data), None):
            words = "the pooled examples hold NaN or infinite numbers"
            raise DataError(f"{words}; `fedmime data verify` names their client")
        batches = Batches(*mini_batches(n, self.batch_size, self.epochs, self.steps, random))
        cohort = given([(Member(0, n, len(batches.counts), 0, sends_gradient=True), data, batches)], len(available))
        return dataclasses.replace(cohort, ids=("pooled",))


@dataclasses.dataclass(frozen=True)
class PopulationSource:
    """The source of a drawn cohort: a member's data is read from the population when a back end asks for it.

    Attributes:
        schedule: draws the mini-batches.
        population: has the data.
        round: the round.
        clients: positions in the population [members], by place in the cohort.
    """

    schedule: Schedule
    population: Clients
    round: int
    clients: np.ndarray

    def examples(self, place: int) -> Columns:
        return self.population.client_at(int(self.clients[place]))

    def batches(self, place: int) -> Batches:
        client = int(self.clients[place])
        return self.schedule.batches(self.round, client, int(self.population.sizes[client]))
