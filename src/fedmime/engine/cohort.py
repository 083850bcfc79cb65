"""A cohort: who takes part in one round, and where the data and the mini-batches of each client are looked up.

A cohort describes its members without holding their examples. A back end reads them through `Cohort.source`, so a
worker that trains a share of the cohort reads only that share.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedmime.errors import DataError

Columns = Mapping[str, np.ndarray]
ClientId = str | int  # a client without an id is called by its position


def client_id(ids: Sequence[str] | None, index: int) -> ClientId:
    """The name of the client at a position of a population."""
    return index if ids is None else ids[index]


class Batches(NamedTuple):
    """The mini-batches of one client in one round."""

    rows: np.ndarray
    """[steps, batch] positions in the client's columns; a partial mini-batch repeats a real row as padding."""
    counts: np.ndarray
    """[steps] number of real rows of each mini-batch; real rows come first."""


class Member(NamedTuple):
    """One client's part in a round, without its data."""

    client: int
    """Position in the population: random numbers and kept values belong to it."""
    size: int
    """n_i, the number of examples that weighs the client in means."""
    steps: int
    """K_i, the number of local steps; zero for a client that does not train."""
    before: int
    """Local steps of all members before this one, by which a randomly drawn step of the cohort is located."""
    sends_gradient: bool
    """Whether the client can be asked for its full gradient."""


class Source(Protocol):
    """Where the data of a cohort's members is looked up, by a member's place in the cohort."""

    def examples(self, place: int) -> Columns:
        """The columns of the member, each [n, ...]."""
        ...

    def batches(self, place: int) -> Batches:
        """The mini-batches of a member that trains."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Cohort:
    """The clients of one round. It is immutable, and one cohort can be used for any number of rounds.

    `Cohort.from_batches` makes one from explicit mini-batches; `simulate` draws its own.
    """

    members: tuple[Member, ...]
    population: int
    """N, the number of clients in the population."""
    source: Source
    batch_size: int
    """The width of the widest mini-batch."""
    each_once: bool
    """Whether the mini-batches of every member that trains contain each of its examples exactly once."""
    weights: np.ndarray | None = None
    """Weights of the updates, one per member that trains; None stands for n_i."""
    gradient_weights: np.ndarray | None = None
    """Weights of the full gradients, one per member that is asked for one; None stands for n_i."""
    explicit: bool = False
    """Whether its mini-batches were given: in split cohorts n_i is then what a client's own mini-batches hold."""
    ids: Sequence[str] | None = None
    """Names of all clients of the population, by position."""
    planned: int | None = None
    """How many clients a round was to have; None stands for the members."""
    cancelled: bool = False
    """Whether too few clients reported for the round to be carried out."""

    training: tuple[Member, ...] = dataclasses.field(init=False)
    """The members that take local steps."""
    probing: tuple[Member, ...] = dataclasses.field(init=False)
    """The members whose full gradient can be asked for."""
    steps: int = dataclasses.field(init=False)
    """Local steps of all members."""
    examples: int = dataclasses.field(init=False)
    """Examples of all members."""
    batches_cover_gradient: bool = dataclasses.field(init=False)
    """Whether the gradients of the mini-batches add up to the full gradient: every member trains and sends its full
    gradient, and its mini-batches hold each of its examples once."""

    def __post_init__(self) -> None:
        derived = {
            "training": tuple(m for m in self.members if m.steps),
            "probing": tuple(m for m in self.members if m.sends_gradient),
            "steps": sum(m.steps for m in self.members),
            "examples": sum(m.size for m in self.members),
            "batches_cover_gradient": self.each_once and all(m.steps and m.sends_gradient for m in self.members),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def client_id(self, index: int) -> ClientId:
        """The name of the client at a position of the population."""
        return client_id(self.ids, index)

    def denominator(self, split: bool) -> int:
        """The planned number of updates, and of gradients: the fixed denominator of private sums."""
        if self.planned is None:
            return max(len(self.training), len(self.probing), 1)
        return max(self.planned // (2 if split else 1), 1)

    def shares(self, split: bool, *, fixed: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The weights of updates and of full gradients, [members] each.

        A member that does not train, or is not asked for its gradient, has the share zero. Without `fixed`, the shares
        of all members sum to one. With `fixed`, every other share is 1 / `denominator(split)`, so the sum is below one
        if fewer clients take part than were planned, and above one if more do. Weights that were given for updates hold
        for the full gradients of the same clients, too.

        Args:
            split: whether the cohort has two halves.
            fixed: give every client the same share, whoever takes part, as differential privacy needs it.
        """
        if fixed:
            roles = np.array([(m.steps > 0, m.sends_gradient) for m in self.members], float).reshape(-1, 2)
            return tuple(roles.T / self.denominator(split))
        sizes = [
            int(self.source.batches(place).counts.sum()) if split and self.explicit and m.steps else m.size
            for place, m in enumerate(self.members)
        ]
        trains = np.array([m.steps > 0 for m in self.members], bool)
        sends = np.array([m.sends_gradient for m in self.members], bool)
        updates, gradients = np.zeros(len(sizes)), np.zeros(len(sizes))
        updates[trains] = np.asarray(sizes)[trains] if self.weights is None else self.weights
        gradients[sends] = np.array([m.size for m in self.probing], float)
        if self.gradient_weights is not None:
            gradients[sends] = self.gradient_weights
        elif self.weights is not None and not split and len(self.weights) == sends.sum():
            gradients[sends] = self.weights
        return updates / max(updates.sum(), 1e-300), gradients / max(gradients.sum(), 1e-300)

    def pooled(self, without: Collection[int] = ()) -> Cohort:
        """The data and mini-batches of all members, or of all but some places, in the hands of one client.

        It takes all steps in order. Clients that are asked for gradients are still asked one by one.
        """
        places = [place for place in range(len(self.members)) if place not in without]
        if not any(self.members[place].steps for place in places):
            raise DataError("the cohort has no client that trains; give at least one")
        columns = {place: self.source.examples(place) for place in places}
        starts = dict(zip(places, _starts(len(first_column(columns[p])) for p in places), strict=False))
        data = {name: np.concatenate([columns[p][name] for p in places]) for name in columns[places[0]]}
        parts = [(self.source.batches(place), starts[place]) for place in places if self.members[place].steps]
        rows = np.concatenate([pad_rows(batches.rows, self.batch_size) + start for batches, start in parts])
        counts = np.concatenate([batches.counts for batches, _ in parts])
        trainer = (
            Member(0, len(first_column(data)), len(counts), 0, sends_gradient=False),
            data,
            Batches(rows, counts),
        )
        asked = [place for place in places if self.members[place].sends_gradient]
        probing = [(self.members[place]._replace(steps=0, before=0), columns[place], None) for place in asked]
        weights = self.gradient_weights
        if weights is not None:
            order = [place for place, m in enumerate(self.members) if m.sends_gradient]
            weights = np.asarray([w for place, w in zip(order, weights, strict=True) if place in columns])
        return dataclasses.replace(given([trainer, *probing], self.population), gradient_weights=weights)

    @classmethod
    def from_batches(
        cls,
        batches: Sequence[Columns],
        mask: Sequence[Any] | None = None,
        weights: Sequence[float] | None = None,
        full: Sequence[Columns] | None = None,
        *,
        gradient_weights: Sequence[float] | None = None,
        ids: Sequence[int] | None = None,
        population: int | None = None,
    ) -> Cohort:
        """A cohort whose every mini-batch is given, so that another implementation can be compared number by number.

        Args:
            batches: for each client that trains, `{field: array[steps, batch, ...]}`.
            mask: for each of them, `array[steps, batch]` that is true for real examples; all are by default.
            weights: of the clients' updates; by default their numbers of examples.
            full: for each client whose full gradient is asked, `{field: array[n, ...]}`: the same clients, or with
                split cohorts the other half. By default the examples of the client's own mini-batches.
            gradient_weights: of the full gradients; by default `weights` for the same clients, else examples.
            ids: positions of the clients in the population, for SCAFFOLD's and FedDyn's memory; by default 0, 1, ...
            population: N; by default the cohort is the whole population.
        """
        from fedmime.engine.explicit import explicit_cohort

        return explicit_cohort(batches, mask, weights, full, gradient_weights, ids, population)


Given = tuple[Member, Columns, Batches | None]


class _Given(NamedTuple):
    """The source of an explicit cohort: data and mini-batches by place."""

    columns: tuple[Columns, ...]
    all_batches: tuple[Batches | None, ...]

    def examples(self, place: int) -> Columns:
        return self.columns[place]

    def batches(self, place: int) -> Batches:
        batches = self.all_batches[place]
        assert batches is not None
        return batches


def with_starts(members: Sequence[Member]) -> tuple[Member, ...]:
    """Members with the number of local steps before each of them."""
    before = _starts(m.steps for m in members)
    return tuple(m._replace(before=b) for m, b in zip(members, before, strict=False))


def given(entries: Sequence[Given], population: int) -> Cohort:
    """A cohort of members that come with their data."""
    members, columns, batches = zip(*entries, strict=True)
    members = with_starts(members)
    trains = [(m, b) for m, b in zip(members, batches, strict=True) if b is not None]
    return Cohort(
        members,
        population,
        _Given(tuple(columns), tuple(batches)),
        batch_size=max(b.rows.shape[1] for _, b in trains),
        each_once=all(b.counts.sum() == m.size == len(np.unique(b.rows)) for m, b in trains),
    )


def first_column(columns: Columns) -> np.ndarray:
    """One of a client's columns, to see how many examples there are."""
    return next(iter(columns.values()))


def _starts(lengths: Any) -> list[int]:
    """Where each of several consecutive stretches begins, and where the last one ends."""
    return list(itertools.accumulate(lengths, initial=0))


def pad_rows(rows: np.ndarray, width: int) -> np.ndarray:
    """Widen a table of mini-batches; padding repeats each batch's first row, so it is as finite as the batch itself."""
    if rows.shape[1] == width:
        return rows
    return np.concatenate([rows, np.repeat(rows[:, :1], width - rows.shape[1], axis=1)], axis=1)
