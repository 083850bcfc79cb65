"""The index plan: which device trains which clients, step by step, as tables whose shapes rarely change.

All examples of a cohort lie in one pool that every device can read; a step is a row of positions in it. Clients are
dealt longest first to the least loaded lane. Tables are padded to powers of two, so that cohorts of other sizes need no
new program, but the loops run over real steps, clients and chunks alone. Inside a step a partial mini-batch is padded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedmime.engine.backends.backend import Work
from fedmime.engine.cohort import Batches, pad_rows


class Tables(NamedTuple):
    """One round's work. Arrays have a leading axis [lanes of all devices], which is left out below."""

    places: np.ndarray
    """[examples] position in the pool of each of the lane's examples."""
    weights: np.ndarray
    """[examples] w_j / n_j of each example's client in the mean full gradient; zero for clients that are not asked.
    Where every client's own gradient is needed, 1 / n_j."""
    chunks: np.ndarray
    """[chunks, 4] the entries of `Chunk`."""
    rows: np.ndarray
    """[steps, batch] which of the lane's examples form each mini-batch."""
    counts: np.ndarray
    """[steps] number of real rows of each mini-batch."""
    clients: np.ndarray
    """[clients, 4] the entries of `Trainee`."""
    shares: np.ndarray
    """[clients] w_i of each client's update."""
    lengths: np.ndarray
    """[3] how many chunks there are, how many clients train, and how many are asked for their own gradient."""
    gradient_clients: np.ndarray
    """[clients, 3] the entries of `GradientClient`; no row unless every client's own gradient is needed."""
    gradient_shares: np.ndarray
    """[clients] w_j of each of these gradients."""


class Chunk(NamedTuple):
    """A stretch of a lane's examples that the full gradient takes at once, at most `Problem.chunk` long."""

    start: Any
    """The first of the lane's examples."""
    count: Any
    """The number of real examples."""
    owner: Any
    """The client whose random numbers the chunk draws."""
    number: Any
    """Which chunk of that client it is."""


class Trainee(NamedTuple):
    """A client that a lane trains."""

    first: Any
    """Row of its first step in `Tables.rows`."""
    steps: Any
    """K_i."""
    client: Any
    """Position in the population."""
    before: Any
    """Steps of the cohort's members before it."""


class GradientClient(NamedTuple):
    """A client whose own full gradient is needed."""

    first: Any
    """Its first chunk."""
    chunks: Any
    """How many chunks it has."""
    client: Any
    """Position in the population."""


class Loaded(NamedTuple):
    """A member with its data."""

    place: int
    """Place in the cohort."""
    client: int
    length: int
    """Number of rows of its columns."""
    start: int
    """Position of its first example in the pool."""
    batches: Batches | None
    """None for a client that does not train."""
    sends_gradient: bool
    before: int

    @property
    def steps(self) -> int:
        """K_i."""
        return 0 if self.batches is None else len(self.batches.counts)


class Layout:
    """The padded sizes of a run's tables: powers of two that only grow, so that few shapes are ever compiled."""

    def __init__(self, lanes: int, chunk: int) -> None:
        self.lanes, self.chunk = lanes, chunk
        self._sizes: dict[str, int] = {}
        self._average = 0  # examples of a client, known when the first cohort or the population is

    def reserve(self, examples: np.ndarray, steps: np.ndarray, cohort_size: int) -> None:
        """Make room for nearly all cohorts of clients with so many examples and steps, so that no later one compiles.

        A cohort's total is taken three standard deviations above its mean, and a lane's share of it ten percent above
        an even one.
        """
        self._average = math.ceil(examples.mean())
        for name, each in (("examples", examples), ("steps", steps)):
            total = cohort_size * float(each.mean()) + 3 * math.sqrt(cohort_size) * float(each.std())
            self.size(name, math.ceil(1.1 * total / self.lanes))
        self.size("clients", math.ceil(1.4 * cohort_size / self.lanes))
        self.size("chunks", math.ceil(self._sizes["examples"] / self.chunk) + self._sizes["clients"])
        self.size("gradient_clients", self._sizes["clients"])

    def size(self, name: str, needed: int) -> int:
        """The padded size of a table that needs so many entries."""
        size = max(self._sizes.get(name, 1), 1 << max(needed - 1, 0).bit_length())
        self._sizes[name] = size
        return size

    def chunk_of(self, work: Work, random: bool) -> int:
        """How many examples a full gradient takes at once.

        A chunk that belongs to one client is padded, so it is not much longer than a client of the average size. Losses
        with random numbers draw them by chunks, whose length must then be the problem's own.
        """
        if random or not work.aggregator.by_client:
            return self.chunk
        self._average = self._average or max(work.cohort.examples // max(len(work.cohort.members), 1), 1)
        return min(self.chunk, 1 << (self._average - 1).bit_length())

    def tables(self, work: Work, members: Sequence[Loaded], *, random: bool) -> tuple[Tables, list[list[Loaded]]]:
        """Lay out members of a cohort; also returns the clients of each lane, in order.

        No chunk of the full gradient spans two clients if the loss is `random`, because it must draw the same numbers
        on any layout, or if the aggregator needs every client's own gradient.
        """
        own, chunk = work.aggregator.by_client, self.chunk_of(work, random)
        single = own and work.wants_gradients  # gradients of single clients
        lanes = _deal(members, self.lanes, work)
        training = [[m for m in lane if m.steps] for lane in lanes]
        chunks = [_chunks(lane, chunk, random or own) if work.wants_gradients else [] for lane in lanes]
        tables = self._blank(
            work.cohort.batch_size,
            examples=max(sum(m.length for m in lane) for lane in lanes),
            steps=max(sum(m.steps for m in lane) for lane in lanes),
            clients=max(map(len, training)),
            chunks=max(map(len, chunks)),
            gradient_clients=max(1, *(sum(m.sends_gradient for m in lane) for lane in lanes)) if single else 0,
        )
        for i, lane in enumerate(lanes):
            _fill(tables, i, work, lane, chunks[i])
            if single:
                _fill_gradient_clients(tables, i, work, [m for m in lane if m.sends_gradient], chunk)
        return tables, lanes

    def _blank(self, batch: int, **needed: int) -> Tables:
        examples, steps, clients, chunks = (
            self.size(name, needed[name]) for name in ("examples", "steps", "clients", "chunks")
        )
        asked = self.size("gradient_clients", needed["gradient_clients"]) if needed["gradient_clients"] else 0
        real = jax.dtypes.canonicalize_dtype(float)

        def zeros(*shape: int, dtype: np.dtype | type = np.int32) -> np.ndarray:
            return np.zeros((self.lanes, *shape), dtype)

        return Tables(
            places=zeros(examples),
            weights=zeros(examples, dtype=real),
            chunks=zeros(chunks, len(Chunk._fields)),
            rows=zeros(steps, batch),
            counts=zeros(steps),
            clients=zeros(clients, len(Trainee._fields)),
            shares=zeros(clients, dtype=real),
            lengths=zeros(3),
            gradient_clients=zeros(asked, len(GradientClient._fields)),
            gradient_shares=zeros(asked, dtype=real),
        )


def _fill(tables: Tables, i: int, work: Work, lane: Sequence[Loaded], chunks: Sequence[Chunk]) -> None:
    """Write the tables of lane i."""
    if not lane:
        return
    *offsets, examples = itertools.accumulate((m.length for m in lane), initial=0)
    lengths = [m.length for m in lane]
    shifts = [m.start - offset for m, offset in zip(lane, offsets, strict=True)]
    tables.places[i, :examples] = np.arange(examples) + np.repeat(shifts, lengths)
    tables.weights[i, :examples] = np.repeat([work.gradient_shares[m.place] / m.length for m in lane], lengths)
    if chunks:
        tables.chunks[i, : len(chunks)] = chunks
    training = [(m, m.batches, offset) for m, offset in zip(lane, offsets, strict=True) if m.batches is not None]
    tables.lengths[i, :2] = len(chunks), len(training)
    if not training:
        return
    *firsts, steps = itertools.accumulate((m.steps for m, _, _ in training), initial=0)
    width = tables.rows.shape[-1]
    tables.rows[i, :steps] = np.concatenate([pad_rows(batches.rows, width) + offset for _, batches, offset in training])
    tables.counts[i, :steps] = np.concatenate([batches.counts for _, batches, _ in training])
    tables.clients[i, : len(training)] = [
        Trainee(first, m.steps, m.client, m.before) for first, (m, _, _) in zip(firsts, training, strict=True)
    ]
    tables.shares[i, : len(training)] = [work.update_shares[m.place] for m, _, _ in training]


def _fill_gradient_clients(tables: Tables, i: int, work: Work, probing: Sequence[Loaded], chunk: int) -> None:
    """Write the tables of lane i for gradients of single clients, who come first in the lane."""
    if not probing:
        return
    lengths = [m.length for m in probing]
    tables.weights[i, : sum(lengths)] = np.repeat([1 / n for n in lengths], lengths)
    chunks = [-(-n // chunk) for n in lengths]
    *firsts, _ = itertools.accumulate(chunks, initial=0)
    tables.gradient_clients[i, : len(probing)] = [
        GradientClient(first, count, m.client) for first, count, m in zip(firsts, chunks, probing, strict=True)
    ]
    tables.gradient_shares[i, : len(probing)] = [work.gradient_shares[m.place] for m in probing]
    tables.lengths[i, 2] = len(probing)


def cost(work: Work, steps: int, examples: int, sends_gradient: bool) -> float:
    """How much work a member of a cohort is, in local steps; its full gradient is as many as it has mini-batches."""
    return steps + (examples / work.cohort.batch_size if work.wants_gradients and sends_gradient else 0)


def deal(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Places for every part: longest first, each to the part with the least work so far."""
    dealt: list[list[int]] = [[] for _ in range(parts)]
    loads = [0.0] * parts
    for place in sorted(range(len(costs)), key=lambda place: (-costs[place], place)):
        part = loads.index(min(loads))
        dealt[part].append(place)
        loads[part] += costs[place]
    return dealt


def in_words(devices: int, parts: int = 1) -> str:
    """Describe the layout of a cohort in words, for `Backend.layout`.

    One part on one device computes exactly what one device of the local back end computes, so n such parts give
    bit-identical results to n devices, and both are described by the same words. Results are not bit-identical if
    clients are refused for their data, because such clients are removed after members are assigned to parts but before
    they are assigned to devices.

    Args:
        devices: the number of devices of each part.
        parts: the number of parts.
    """
    if devices == 1 or parts == 1:
        return f"{devices * parts} device{'s' if devices * parts > 1 else ''}"
    return f"{parts} parts on {devices} devices each"


def _deal(members: Sequence[Loaded], lanes: int, work: Work) -> list[list[Loaded]]:
    """Longest first to the least loaded lane; in each lane, clients that are asked for a gradient come first."""
    dealt = deal([cost(work, m.steps, m.length, m.sends_gradient) for m in members], lanes)
    return [sorted((members[i] for i in lane), key=lambda m: not m.sends_gradient) for lane in dealt]


def _chunks(lane: Sequence[Loaded], chunk: int, by_client: bool) -> list[Chunk]:
    """The chunks that cover all examples whose gradient may be asked."""
    probing = [m for m in lane if m.sends_gradient]
    stretches = [(m.client, m.length) for m in probing] if by_client else [(0, sum(m.length for m in probing))]
    chunks, start = [], 0
    for owner, length in stretches:
        for number, offset in enumerate(range(0, length, chunk)):
            chunks.append(Chunk(start + offset, min(chunk, length - offset), owner, number))
        start += length
    return chunks
