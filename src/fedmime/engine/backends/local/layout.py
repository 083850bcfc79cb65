"""The index plan: which device trains which clients, step by step, as tables whose shapes rarely change.

All examples of a cohort lie in one pool that every device can read; a step is a row of positions in it. Clients are
dealt longest first to the least loaded lane. Tables are padded to powers of two, but the compiled programs run only the
real entries: padding costs no work, and cohorts of other sizes need no new program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedmime.engine.backends.backend import Work
from fedmime.engine.cohort import Batches, pad_rows


class Tables(NamedTuple):
    """One round's work. Arrays have a leading axis [lanes of all devices], which is left out below."""

    places: np.ndarray
    """[examples] position in the pool of each of the lane's examples."""
    weights: np.ndarray
    """[examples] w_j / n_j of each example's client in the mean full gradient; zero for clients that are not asked."""
    chunks: Chunks
    chunk_count: np.ndarray
    """[] how many chunks there are."""
    rows: np.ndarray
    """[steps, batch] which of the lane's examples form each mini-batch."""
    counts: np.ndarray
    """[steps] number of real rows of each mini-batch."""
    clients: Clients
    client_count: np.ndarray
    """[] how many clients train."""


class Chunks(NamedTuple):
    """Stretches of a lane's examples that the full gradient goes through, each at most `Problem.chunk` long."""

    start: np.ndarray
    """[chunks] first of the lane's examples."""
    count: np.ndarray
    """[chunks] number of real examples."""
    owner: np.ndarray
    """[chunks] the client whose random numbers the chunk draws."""
    number: np.ndarray
    """[chunks] which chunk of that client it is."""


class Clients(NamedTuple):
    """The clients that a lane trains, in order."""

    first: np.ndarray
    """[clients] row of the client's first step in `Tables.rows`."""
    steps: np.ndarray
    """[clients] K_i."""
    weight: np.ndarray
    """[clients] w_i."""
    client: np.ndarray
    """[clients] position in the population."""
    before: np.ndarray
    """[clients] steps of the cohort's members before it."""


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
    probes: bool
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

    def reserve(self, examples: np.ndarray, steps: np.ndarray, cohort_size: int) -> None:
        """Make room for nearly all cohorts of clients with so many examples and steps, so that no later one compiles.

        A cohort's total is taken three standard deviations above its mean, and a lane's share of it ten percent above
        an even one.
        """
        for name, each in (("examples", examples), ("steps", steps)):
            total = cohort_size * float(each.mean()) + 3 * math.sqrt(cohort_size) * float(each.std())
            self.size(name, math.ceil(1.1 * total / self.lanes))
        self.size("clients", math.ceil(1.4 * cohort_size / self.lanes))
        self.size("chunks", math.ceil(self._sizes["examples"] / self.chunk) + self._sizes["clients"])

    def size(self, name: str, needed: int) -> int:
        """The padded size of a table that needs so many entries."""
        size = max(self._sizes.get(name, 1), 1 << max(needed - 1, 0).bit_length())
        self._sizes[name] = size
        return size

    def tables(self, work: Work, members: Sequence[Loaded], *, by_client: bool) -> tuple[Tables, list[list[Loaded]]]:
        """Lay out members of a cohort; also returns the clients that each lane trains, in order.

        With `by_client` no chunk of the full gradient spans two clients, so that a loss with random numbers draws the
        same ones on any layout.
        """
        lanes = _deal(members, self.lanes, work.cohort.batch_size)
        training = [[m for m in lane if m.steps] for lane in lanes]
        chunks = [_chunks(lane, self.chunk, by_client) for lane in lanes]
        tables = self._blank(
            work.cohort.batch_size,
            examples=max(sum(m.length for m in lane) for lane in lanes),
            steps=max(sum(m.steps for m in lane) for lane in lanes),
            clients=max(map(len, training)),
            chunks=max(map(len, chunks)),
        )
        for i, lane in enumerate(lanes):
            _fill(tables, i, work, lane, chunks[i])
        return tables, training

    def _blank(self, batch: int, **needed: int) -> Tables:
        examples, steps, clients, chunks = (self.size(name, needed[name]) for name in needed)
        real = jax.dtypes.canonicalize_dtype(float)

        def zeros(*shape: int, dtype: np.dtype | type = np.int32) -> np.ndarray:
            return np.zeros((self.lanes, *shape), dtype)

        return Tables(
            places=zeros(examples),
            weights=zeros(examples, dtype=real),
            chunks=Chunks(*(zeros(chunks) for _ in Chunks._fields)),
            chunk_count=zeros(),
            rows=zeros(steps, batch),
            counts=zeros(steps),
            clients=Clients(*(zeros(clients, dtype=real if f == "weight" else np.int32) for f in Clients._fields)),
            client_count=zeros(),
        )


def _fill(tables: Tables, i: int, work: Work, lane: Sequence[Loaded], chunks: Sequence[tuple[int, ...]]) -> None:
    """Write the tables of lane i."""
    if not lane:
        return
    *offsets, examples = itertools.accumulate((m.length for m in lane), initial=0)
    lengths = [m.length for m in lane]
    shifts = [m.start - offset for m, offset in zip(lane, offsets, strict=True)]
    tables.places[i, :examples] = np.arange(examples) + np.repeat(shifts, lengths)
    tables.weights[i, :examples] = np.repeat([work.gradients[m.place] / m.length for m in lane], lengths)
    tables.chunk_count[i] = len(chunks)
    for column, values in zip(tables.chunks, zip(*chunks, strict=True), strict=False):
        column[i, : len(values)] = values

    training = [(m, m.batches, offset) for m, offset in zip(lane, offsets, strict=True) if m.batches is not None]
    if not training:
        return
    *firsts, steps = itertools.accumulate((m.steps for m, _, _ in training), initial=0)
    width = tables.rows.shape[-1]
    tables.rows[i, :steps] = np.concatenate([pad_rows(batches.rows, width) + offset for _, batches, offset in training])
    tables.counts[i, :steps] = np.concatenate([batches.counts for _, batches, _ in training])
    tables.client_count[i] = len(training)
    each = [
        (first, m.steps, work.updates[m.place], m.client, m.before)
        for first, (m, _, _) in zip(firsts, training, strict=True)
    ]
    for column, values in zip(tables.clients, zip(*each, strict=True), strict=True):
        column[i, : len(values)] = values


def _deal(members: Sequence[Loaded], lanes: int, batch: int) -> list[list[Loaded]]:
    """Longest first to the least loaded lane; in each lane, clients that are asked for a gradient come first."""
    cost = {m.place: m.steps + m.length / batch * m.probes for m in members}
    dealt: list[list[Loaded]] = [[] for _ in range(lanes)]
    loads = [0.0] * lanes
    for m in sorted(members, key=lambda m: (-cost[m.place], m.place)):
        lane = loads.index(min(loads))
        dealt[lane].append(m)
        loads[lane] += cost[m.place]
    return [sorted(lane, key=lambda m: not m.probes) for lane in dealt]


def _chunks(lane: Sequence[Loaded], chunk: int, by_client: bool) -> list[tuple[int, ...]]:
    """(start, count, owner, number) of the chunks that cover all examples whose gradient may be asked."""
    probing = [m for m in lane if m.probes]
    stretches = [(m.client, m.length) for m in probing] if by_client else [(0, sum(m.length for m in probing))]
    chunks, start = [], 0
    for owner, length in stretches:
        for number, offset in enumerate(range(0, length, chunk)):
            chunks.append((start + offset, min(chunk, length - offset), owner, number))
        start += length
    return chunks
