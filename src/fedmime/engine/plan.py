"""The index plan: which device works through which clients, step by step, as tables that always have the same shapes.

All examples a device needs lie in one pool, its own or that of all devices; a step is a row of their numbers. Clients
go longest first to the least loaded device; the shortest can be left to whichever device is done first, for cores are
not equally fast at all times. Tables are padded to powers of two, but the compiled round runs only the
real entries, so padding costs no work and clients of other sizes cost no compilation.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from fedmime import native
from fedmime.engine.blocks import unfilled
from fedmime.engine.cohort import Cohort, Member, pad_rows
from fedmime.engine.devices import own_cores
from fedmime.engine.pool import Pool

COMMON_SHARE, MOST_COMMON = 0.2, 8  # of the steps, and of clients, that any device may take
COMMON_BYTES = 64 << 20  # of further copies of their examples; and of their replies on a device
EXCHANGES, FEW = 4, 100  # how often devices change clients, where there are at most so many


class Tables(NamedTuple):
    """One round's work. Arrays have a leading axis, the lanes of all devices, but in the program of a lane."""

    pool: dict[str, np.ndarray]  # [devices, examples, ...]; or [all examples, ...], the same on every device
    places: np.ndarray  # [devices, examples] where in such a pool each is; [devices, 0] in a pool of their own
    probe_weights: np.ndarray  # [devices, examples] w_j / n_j of each example's client; zero where not asked
    chunks: Chunks
    rows: np.ndarray  # [devices, steps, batch] which of the device's examples
    counts: np.ndarray  # [devices, steps] real rows of each step
    clients: Clients
    client_count: np.ndarray  # [devices] clients of its own
    common_count: np.ndarray  # [devices] clients that any device may train; the same for all
    chunk_count: np.ndarray  # [devices]
    core: np.ndarray  # [devices] its number, if it is to have a core of its own, or -1

    def sizes(self) -> Sizes:
        """In the program of a lane."""
        steps, batch = self.rows.shape
        return Sizes(len(self.probe_weights), steps, batch, len(self.clients.first), len(self.chunks.start))


class Chunks(NamedTuple):
    """Stretches of a device's examples that the full gradient goes through."""

    start: np.ndarray  # [devices, chunks] first of the device's examples
    count: np.ndarray  # [devices, chunks] real examples
    owner: np.ndarray  # [devices, chunks] client whose random numbers it takes
    number: np.ndarray  # [devices, chunks] which chunk of that client


class Clients(NamedTuple):
    """The clients a device trains, in order; before its own, room for those that any device may train."""

    first: np.ndarray  # [devices, clients] row of the client's first step
    steps: np.ndarray  # [devices, clients] K_i
    weight: np.ndarray  # [devices, clients] w_i
    index: np.ndarray  # [devices, clients] position in the population
    before: np.ndarray  # [devices, clients] steps of the cohort's clients before it


class Sizes(NamedTuple):
    """How many entries a lane's tables have."""

    examples: int
    steps: int
    batch: int
    clients: int
    chunks: int


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["pool", "whole", "real"], meta_fields=["sizes", "shared"]
)
@dataclasses.dataclass(frozen=True)
class Packed:
    """The tables on their way to a device: all whole numbers are one array, all others another."""

    pool: dict[str, Any]
    whole: Any  # [devices, ...]
    real: Any  # [devices, ...]
    sizes: Sizes
    shared: bool  # whether there is one pool for all devices

    @classmethod
    def blank(cls, pool: Mapping[str, Any], devices: int, sizes: Sizes, shared: bool) -> Self:
        """Tables of zeros; what `opened` gives are views of them."""
        whole = 4 * sizes.chunks + sizes.steps * (sizes.batch + 1) + 4 * sizes.clients + 4 + shared * sizes.examples
        real = np.zeros((devices, sizes.examples + sizes.clients), jax.dtypes.canonicalize_dtype(float))
        return cls(dict(pool), np.zeros((devices, whole), np.int32), real, sizes, shared)

    def with_own(self, function: Callable[[Any], Any], common: Callable[[Any], Any]) -> Self:
        """The same with something else in place of what each device has of its own, and of what all have in common."""
        pool = (common if self.shared else function)(self.pool)
        return dataclasses.replace(self, pool=pool, whole=function(self.whole), real=function(self.real))

    def sent(self, place: Any) -> Self:
        """The same on the devices."""
        pool = self.pool if self.shared else jax.device_put(self.pool, place)
        whole, real = (jax.make_array_from_callback(a.shape, place, a.__getitem__) for a in (self.whole, self.real))
        return dataclasses.replace(self, pool=pool, whole=whole, real=real)

    def opened(self) -> Tables:
        """The tables one by one."""
        _, steps, batch, clients, chunks = self.sizes
        whole, real = _cuts(self.whole), _cuts(self.real)
        return Tables(
            pool=self.pool,
            places=whole(self.shared * self.sizes.examples),
            probe_weights=real(self.sizes.examples),
            chunks=Chunks(*(whole(chunks) for _ in Chunks._fields)),
            rows=whole(steps, batch),
            counts=whole(steps),
            clients=Clients(whole(clients), whole(clients), real(clients), whole(clients), whole(clients)),
            client_count=whole(),
            common_count=whole(),
            chunk_count=whole(),
            core=whole(),
        )


def _cuts(packed: Any) -> Callable[..., Any]:
    """Cuts one table after another from the last axis of an array."""
    place = 0

    def cut(*shape: int) -> Any:
        nonlocal place
        start, place = place, place + math.prod(shape)
        return packed[..., start:place].reshape((*packed.shape[:-1], *shape))

    return cut


class Layout:
    """The padded sizes of a run's tables: powers of two that only grow, so that few shapes are ever compiled."""

    def __init__(self, devices: int, chunk: int, lanes: int = 1, masked: bool = False) -> None:
        self.devices, self.lanes, self.chunk, self.masked = devices, lanes, chunk, masked
        self.pool: Pool | None = None  # where clients' examples lie already
        self.random: tuple[Any, Any, bool] | None = None  # a problem, a model, and whether the loss draws numbers
        self._sizes: dict[str, int] = {}

    @property
    def tracks(self) -> int:
        """Lanes of all devices together."""
        return self.devices * self.lanes

    def reserve(self, examples: np.ndarray, steps: np.ndarray, cohort_size: int, *, common: bool = False) -> None:
        """Make room for nearly all cohorts of clients with so many examples and steps, so that no later one compiles.

        A cohort's total is taken three standard deviations above its mean, and a lane's share of it a little larger
        than an even one. `common`: whether some clients will be left to whichever device is done first.
        """
        for_all = common * min(COMMON_SHARE, MOST_COMMON / cohort_size)
        share = 1.1 * ((1 - for_all) / self.tracks + for_all)
        for name, each in (("examples", examples), ("steps", steps)):
            total = cohort_size * float(each.mean()) + 3 * math.sqrt(cohort_size) * float(each.std())
            self.size(name, math.ceil(share * total))
        self.size("clients", math.ceil(1.25 * share * cohort_size) + common * MOST_COMMON)
        self.size("chunks", math.ceil(self._sizes["examples"] / self.chunk) + self._sizes["clients"])
        if self.masked:
            self.size("longest", int(steps.max(initial=1)))

    def size(self, name: str, needed: int) -> int:
        """The padded size for `needed` entries."""
        size = max(self._sizes.get(name, 1), 1 << max(needed - 1, 0).bit_length())
        self._sizes[name] = size
        return size


@dataclasses.dataclass(frozen=True)
class Places:
    """Which device trains which clients."""

    trained: list[int]  # clients, in the order of the cohort
    anyones: list[int]  # those that any device may train
    owned: list[list[int]]  # each device's own
    first: int  # slot of a device's own

    @functools.cached_property
    def slots(self) -> dict[int, tuple[Any, int]]:
        """The device and the slot that has a client; a slice of all devices for one that any of them may train."""
        slots: dict[int, tuple[Any, int]] = {client: (slice(None), i) for i, client in enumerate(self.anyones)}
        for d, own in enumerate(self.owned):
            slots |= {client: (d, i) for i, client in enumerate(own, self.first)}
        return {client: slots[client] for client in self.trained}


class Plan(NamedTuple):
    """The tables, and who is where in them."""

    tables: Packed
    places: Places
    longest: int  # steps of the client with most, padded
    common: int  # clients that any device may train, at most


WAVE_BYTES = 512 << 20  # of examples that are on the devices together


def waves_of(cohort: Cohort) -> list[tuple[Member, ...]]:
    """The members in groups whose examples fit on the devices together; nearly always one group."""
    sizes = [m.nbytes for m in cohort.members]
    waves: list[list[Member]] = []
    load = 0
    for member, size in zip(cohort.members, sizes, strict=True):
        if not waves or load + size > WAVE_BYTES:
            waves.append([])
            load = 0
        waves[-1].append(member)
        load += size
    return [tuple(wave) for wave in waves]


def make_plan(
    cohort: Cohort,
    members: Sequence[Member],
    layout: Layout,
    *,
    split: bool,
    by_client: bool,
    gradients: bool = True,
    common: int = 0,
) -> Plan:
    """Lay out the members of a cohort that are on the devices together.

    With `by_client` no chunk of the full gradient spans two clients, so that a loss with random numbers draws the same
    ones on any layout. `gradients`: whether a full gradient may be asked of clients. `common`: how many of them may be
    left to whichever device is done first; none is asked for a gradient then.
    """
    anyones = _shortest(members, common, 0 if layout.pool is not None else layout.devices - 1)
    taken = set(map(id, anyones))
    owned = [m for m in members if id(m) not in taken] if anyones else members
    even = not anyones and len(members) <= FEW  # more even each other out
    lanes = [[*anyones, *lane] for lane in _deal(owned, layout.tracks, cohort.batch_size, gradients, even)]
    chunks = [_chunks(lane, layout.chunk, by_client) if gradients else [] for lane in lanes]
    training = [[m for m in lane if m.steps] for lane in lanes]

    devices, width = layout.tracks, cohort.batch_size
    sizes = Sizes(
        examples=layout.size("examples", max(sum([m.length for m in lane]) for lane in lanes)),
        steps=layout.size("steps", max(sum([m.steps for m in lane]) for lane in lanes)),
        batch=width,
        clients=layout.size("clients", common - len(anyones) + max(map(len, training))),
        chunks=layout.size("chunks", max(map(len, chunks))),
    )
    starts = None if layout.pool is None else layout.pool.starts_of(members)
    if layout.pool is not None and starts is not None:
        packed = Packed.blank(layout.pool.device, devices, sizes, shared=True)
    else:
        sample = cohort.members[0].data
        pool = {name: unfilled((devices, sizes.examples, *a.shape[1:]), a.dtype) for name, a in sample.items()}
        packed = Packed.blank(pool, devices, sizes, shared=False)
    tables = packed.opened()
    tables.core[:] = own_cores(layout.devices).repeat(layout.lanes)
    tables.common_count[:] = len(anyones)
    tables.client_count[:] = [len(lane) - len(anyones) for lane in training]
    tables.chunk_count[:] = [len(lane) for lane in chunks]
    updates, means = cohort.shares(split)
    update, before = _by_member(cohort.training, updates), _by_member(cohort.training, _before(cohort))
    gradient = _by_member(cohort.probing, means) if gradients else {}

    for d, lane in enumerate(lanes):
        native.give_way()
        lengths = [m.length for m in lane]
        firsts, examples = _running(lengths)
        if gradients:
            each = [gradient[id(m)] / m.length if m.probes else 0.0 for m in lane]
            tables.probe_weights[d, :examples] = np.repeat(each, lengths)
            for column, entries in zip(tables.chunks, zip(*chunks[d], strict=True), strict=False):
                column[d, : len(chunks[d])] = entries
        if training[d]:
            steps = [m.steps for m in training[d]]
            begins, last = _running(steps)
            rows, shifts = tables.rows[d, :last], [f for f, m in zip(firsts, lane, strict=True) if m.steps]
            np.concatenate([pad_rows(m.rows, width) for m in training[d] if m.rows is not None], out=rows)
            rows += np.repeat(np.asarray(shifts, np.int32), steps)[:, None]
            np.concatenate([m.counts for m in training[d] if m.counts is not None], out=tables.counts[d, :last])
            own = [(update[id(m)], m.index, before[id(m)]) for m in training[d]]
            for column, values in zip(tables.clients, (begins, steps, *zip(*own, strict=True)), strict=True):
                column[d, : len(anyones)] = values[: len(anyones)]
                column[d, common : common + len(values) - len(anyones)] = values[len(anyones) :]
        if starts is None:
            _copy(lane, {name: column[d, :examples] for name, column in tables.pool.items()})
        else:
            shifts = [starts[m.index] - first for m, first in zip(lane, firsts, strict=True)]
            tables.places[d, :examples] = np.repeat(shifts, lengths) + np.arange(examples)

    longest = layout.size("longest", max(m.steps for m in members))
    numbers = [[m.index for m in lane[len(anyones) :]] for lane in training]
    places = Places([m.index for m in members if m.steps], [m.index for m in anyones], numbers, common)
    return Plan(packed, places, longest, common)


def _by_member(members: Sequence[Member], values: Any) -> dict[int, Any]:
    """Values by the identity of members: the same client may be one twice."""
    return dict(zip(map(id, members), values, strict=True))


def _running(counts: Sequence[int]) -> tuple[list[int], int]:
    """Where each of some stretches begins, one behind another, and where the last ends."""
    *firsts, end = itertools.accumulate(counts, initial=0)
    return firsts, end


def _copy(lane: Sequence[Member], pool: dict[str, np.ndarray]) -> None:
    """Put a device's examples one behind another. No table points at rows of a pool that stay unfilled."""
    for name, column in pool.items():
        native.give_way()
        if lane:
            np.concatenate([member.data[name] for member in lane], out=column, casting="unsafe")


def _before(cohort: Cohort) -> list[int]:
    """The local steps of the clients before each client that trains."""
    return _running([m.steps for m in cohort.training])[0]


def _deal(members: Sequence[Member], devices: int, batch: int, gradients: bool, even: bool) -> list[list[Member]]:
    """Longest first to the least loaded device; on each, clients asked for a gradient come first in the pool."""
    cost = [m.steps + (m.length / batch if gradients and m.probes else 0) for m in members]
    lanes: list[list[int]] = [[] for _ in range(devices)]
    loads = [0.0] * devices
    for i in sorted(range(len(members)), key=lambda i: (-cost[i], i)):
        lane = loads.index(min(loads))
        lanes[lane].append(i)
        loads[lane] += cost[i]
    if even:
        _even_out(lanes, np.asarray(cost))
    return [sorted((members[i] for i in lane), key=lambda m: not m.probes) for lane in lanes]


def _even_out(lanes: list[list[int]], cost: np.ndarray) -> None:
    """Let the most and the least loaded device change a client for another, as long as that brings them nearer."""
    for _ in range(EXCHANGES):
        loads = [float(cost[lane].sum()) for lane in lanes]
        most, least = lanes[int(np.argmax(loads))], lanes[int(np.argmin(loads))]
        apart = max(loads) - min(loads)
        if not least or apart <= 1:  # a step cannot be shared
            return
        after = np.abs(apart - 2 * (cost[most][:, None] - cost[least]))
        i, j = np.unravel_index(np.argmin(after), after.shape)
        if after[i, j] >= apart:
            return
        most[i], least[j] = least[j], most[i]


def _shortest(members: Sequence[Member], most: int, copies: int) -> list[Member]:
    """Clients with few steps, the longest of them first.

    At most so many, and with them at most a part of all steps and of the memory for further copies of their examples.
    """
    training = sorted((m for m in members if m.steps), key=lambda m: (m.steps, m.length, -m.index)) if most else []
    if not training:
        return []
    steps = np.cumsum([m.steps for m in training])
    nbytes = np.cumsum([m.nbytes for m in training])
    few = np.searchsorted(steps, COMMON_SHARE * steps[-1], "right")
    small = np.searchsorted(copies * nbytes, COMMON_BYTES, "right")
    return training[: min(most, int(few), int(small))][::-1]


def _chunks(lane: Sequence[Member], chunk: int, by_client: bool) -> list[tuple[int, int, int, int]]:
    """(start, count, owner, number) of the stretches that cover all examples whose gradient is asked."""
    probing = [m for m in lane if m.probes]
    stretches = [(m.index, m.length) for m in probing] if by_client else [(0, sum(m.length for m in probing))]
    table, start = [], 0
    for owner, length in stretches:
        for number, offset in enumerate(range(0, length, chunk)):
            table.append((start + offset, min(chunk, length - offset), owner, number))
        start += length
    return table
