"""A round's cohort in parts: how it is split, what travels to a worker, and how the answers are added up.

How many parts there are, and who is in them, follows from the cohort and the options, not from who is alive. A part
keeps its shares of the whole cohort, the positions of its local steps and the random numbers of its clients, so sums
over parts are sums over the cohort. They are added in the order of the parts. A part's answer is a function of the part
alone, so the same numbers come out, to the last bit, whichever worker computed which part.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.aggregation.gate import Reason
from fedmime.engine.backends.backend import Answer, ClientMessages, Totals, Work
from fedmime.engine.backends.local.layout import cost, deal
from fedmime.engine.cohort import Batches, Cohort, Columns, Source
from fedmime.engine.participation import RELIABLE
from fedmime.engine.sampling import PopulationSource
from fedmime.errors import DataError


class Part(NamedTuple):
    """Members of a cohort as they travel to a worker: arrays, numbers, and the algorithm's recipe."""

    number: int
    """Which part of the cohort it is."""
    cost: float
    """How much work it is, in local steps."""
    work: Work
    """The part's work. Its key is a `Key`, and its source has no population: the worker has its own."""

    @property
    def training(self) -> list[int]:
        """The clients that train, by position in the population."""
        return [member.client for member in self.work.cohort.training]


class Key(NamedTuple):
    """A random key of JAX, which cannot be pickled itself."""

    implementation: str
    data: np.ndarray

    @classmethod
    def of(cls, key: jax.Array) -> Key:
        """The parts of a key."""
        return cls(str(jax.random.key_impl(key)), np.asarray(jax.random.key_data(key)))

    @property
    def joined(self) -> jax.Array:
        """The key again."""
        return jax.random.wrap_key_data(jnp.asarray(self.data), impl=self.implementation)


class Sent(NamedTuple):
    """The source of a part whose data travels with it, because no worker has the population that it comes from."""

    columns: tuple[Columns | DataError, ...]
    """The examples of each member, or why they cannot be read."""
    all_batches: tuple[Batches | None, ...]

    def examples(self, place: int) -> Columns:
        """See `Source.examples`."""
        found = self.columns[place]
        if isinstance(found, DataError):
            raise found
        return found

    def batches(self, place: int) -> Batches:
        """See `Source.batches`."""
        batches = self.all_batches[place]
        assert batches is not None
        return batches


class Parcel(NamedTuple):
    """A pytree whose arrays are elsewhere, so that one which is sent twice in a round is copied once."""

    places: Any
    """The pytree, with a number in place of each array."""
    refs: Sequence[Any]
    """References to lists, which have the arrays one after another."""

    def filled(self, lists: Sequence[Sequence[Any]]) -> Any:
        """The pytree again, with these lists in place of the references."""
        arrays = [array for each in lists for array in each]
        return jax.tree.map(arrays.__getitem__, self.places)


class PartAnswer(NamedTuple):
    """What a worker answers for a part; the first six fields are those of `Answer`, as NumPy arrays and numbers."""

    gradients: tuple[Any, ...]
    share: Any
    totals: Totals | None
    clients: int
    refused: Mapping[int, int]
    unclipped: Any
    new: Mapping[int, Any]
    """What clients keep if the server accepts the round, by position in the population."""
    findings: Sequence[tuple[str, object]]
    """What the worker found in clients' data, for `Intake.repeat`."""
    seconds: float
    """How long the worker has computed."""
    losses: Mapping[int, float] = {}
    """The mean losses of single clients, where they are asked for, by position in the population."""


def split(work: Work, parts: int, population: Any) -> dict[int, Part]:
    """The parts of a round that have members, by number.

    Args:
        work: the round's.
        parts: how many parts there are.
        population: what the workers have; clients drawn from another one travel with their data.
    """
    key, costs = Key.of(work.key), [cost(work, m.steps, m.size, m.sends_gradient) for m in work.cohort.members]
    found = {}
    for number, places in enumerate(map(sorted, deal(costs, parts))):
        if places:
            chosen = np.asarray(places)
            own = work._replace(
                cohort=_part(work.cohort, places, population),
                key=key,
                update_shares=work.update_shares[chosen],
                gradient_shares=work.gradient_shares[chosen],
            )
            found[number] = Part(number, sum(costs[place] for place in places), own)
    return found


def _part(cohort: Cohort, places: Sequence[int], population: Any) -> Cohort:
    """Some members of a cohort, with the names of these alone."""
    members = tuple(cohort.members[place] for place in places)
    names: Any = None if cohort.ids is None else {m.client: cohort.ids[m.client] for m in members}
    source, given = cohort.source, {"weights": None, "gradient_weights": None, "ids": names}
    if population is not None and isinstance(source, PopulationSource) and source.population is population:
        clients: Any = source.clients[np.asarray(places)]
        schedule = dataclasses.replace(source.schedule, participation=RELIABLE)  # a sampler stays here
        travelling: Source = dataclasses.replace(source, schedule=schedule, population=None, clients=clients)
    else:
        batches = tuple(source.batches(p) if cohort.members[p].steps else None for p in places)
        travelling = Sent(tuple(_columns(source, place) for place in places), batches)
    return _replaced(cohort, members=members, source=travelling, **given)


def _columns(source: Source, place: int) -> Columns | DataError:
    try:
        return {name: np.asarray(column) for name, column in source.examples(place).items()}
    except DataError as error:  # the worker's intake decides what becomes of such a client
        return error


def arrived(work: Work, population: Any) -> Work:
    """A part's work on a worker, with the worker's own population to look clients up in."""
    assert isinstance(work.key, Key)
    work = work._replace(key=work.key.joined)
    source = work.cohort.source
    if isinstance(source, PopulationSource):
        source = dataclasses.replace(source, population=population)
        work = work._replace(cohort=_replaced(work.cohort, source=source))
    return work


def _replaced(cohort: Cohort, **changes: Any) -> Cohort:
    """A cohort with other members or another source, whose full gradients are taken as those of the whole are."""
    new = dataclasses.replace(cohort, **changes)
    object.__setattr__(new, "batches_cover_gradient", cohort.batches_cover_gradient)
    return new


def plain(tree: Any) -> Any:
    """A pytree with NumPy arrays for those of JAX.

    A weakly typed scalar becomes a Python number: elsewhere it takes the type of what it meets, as it does here.
    """

    def on_host(leaf: Any, copy: Any) -> Any:
        return copy.item() if isinstance(leaf, jax.Array) and leaf.weak_type and not leaf.ndim else copy

    return jax.tree.map(on_host, tree, jax.device_get(tree))


def accepted(messages: ClientMessages) -> ClientMessages:
    """The messages that count; what is left out is padding, or was refused."""
    weights = np.asarray(messages.weights)
    rows = np.flatnonzero(weights)
    return ClientMessages(jax.tree.map(lambda leaf: np.asarray(leaf)[rows], messages.values), weights[rows])


def added(answers: Sequence[PartAnswer], cohort: Cohort) -> Answer:
    """One answer of those of all parts, in their order."""
    place = {member.client: i for i, member in enumerate(cohort.members)}
    refused = {client: Reason(reason) for answer in answers for client, reason in answer.refused.items()}
    refused = {client: refused[client] for client in sorted(refused, key=place.__getitem__)}
    gradients = [answer.gradients for answer in answers if answer.gradients]
    totals = [answer.totals for answer in answers if answer.totals is not None]
    points = [_sum(each, len(cohort.probing)) for each in zip(*gradients, strict=True)]
    total = None
    if totals:
        messages = [each.messages for each in totals if each.messages is not None]
        sums = _sum([each._replace(messages=None) for each in totals], 0)
        total = sums._replace(messages=_sum(messages, len(cohort.training)) if messages else None)
    found = jax.device_put((tuple(points), total), jax.local_devices()[0])
    return Answer(
        found[0],
        sum(answer.share for answer in answers),
        found[1],
        sum(answer.clients for answer in answers),
        lambda: refused,
        sum(answer.unclipped for answer in answers),
        losses=lambda: {client: loss for answer in answers for client, loss in answer.losses.items()},
    )


def _sum(parts: Sequence[Any], rows: int) -> Any:
    """The sum of pytrees in their order; `ClientMessages` one after another, filled up to a number of rows.

    That number does not depend on who was refused, so that the server's program need not be compiled again.
    """
    if not isinstance(parts[0], ClientMessages):
        return jax.tree.map(lambda *leaves: functools.reduce(np.add, leaves), *parts)

    def joined(*leaves: np.ndarray) -> np.ndarray:
        all_ = np.concatenate(leaves)
        return np.concatenate([all_, np.zeros((rows - len(all_), *all_.shape[1:]), all_.dtype)])

    return jax.tree.map(joined, *parts)
