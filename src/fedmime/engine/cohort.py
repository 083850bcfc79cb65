"""A cohort: the clients of one round, their data, and the exact mini-batches each will take."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from fedmime.errors import ConfigError, DataError
from fedmime.numbers import count, quote, whole

_LAST_POSITION = 2**31 - 1  # positions in the population travel as int32
Columns = Mapping[str, np.ndarray]
ClientId = str | int  # a position is the name of a client that has no other


def client_id(ids: Sequence[str] | None, index: int) -> ClientId:
    """What the client at a position of a population is called."""
    return index if ids is None else ids[index]


@dataclasses.dataclass(frozen=True, eq=False)
class Member:
    """One client's part in a round: it trains (its mini-batches are set), sends its full gradient, or both."""

    index: int  # position in the population: random numbers and memory go by it
    data: Columns
    size: int  # n_i
    rows: np.ndarray | None = None  # [steps, batch] positions in `data`; a partial batch repeats a real row as padding
    counts: np.ndarray | None = None  # [steps] real rows of each mini-batch
    probes: bool = True  # whether its full gradient may be asked for

    steps: int = dataclasses.field(init=False)  # K_i, zero for a client that does not train
    length: int = dataclasses.field(init=False)  # rows of its columns
    nbytes: int = dataclasses.field(init=False)  # of its columns

    def __post_init__(self) -> None:
        columns = self.data.values()
        object.__setattr__(self, "steps", 0 if self.counts is None else len(self.counts))
        object.__setattr__(self, "length", len(next(iter(columns))))
        object.__setattr__(self, "nbytes", sum([column.nbytes for column in columns]))


@dataclasses.dataclass(frozen=True)
class Cohort:
    """The members of one round. `weights` and `gradient_weights` of None mean n_i."""

    members: tuple[Member, ...]
    population: int
    weights: np.ndarray | None = None
    gradient_weights: np.ndarray | None = None
    explicit: bool = False
    ids: Sequence[str] | None = dataclasses.field(default=None, compare=False)  # of all clients, by position
    unfit: Mapping[int, str] = dataclasses.field(default_factory=dict, compare=False)  # who was drawn in vain, and why

    def client_id(self, index: int) -> ClientId:
        """What the client at a position of the population is called."""
        return client_id(self.ids, index)

    @functools.cached_property
    def training(self) -> tuple[Member, ...]:
        """The clients that take local steps."""
        return tuple(m for m in self.members if m.steps)

    @functools.cached_property
    def probing(self) -> tuple[Member, ...]:
        """The clients whose full gradient can be asked for."""
        return tuple(m for m in self.members if m.probes)

    @functools.cached_property
    def steps(self) -> int:
        """Local steps of all clients."""
        return sum(m.steps for m in self.members)

    @functools.cached_property
    def examples(self) -> int:
        """Examples of all clients."""
        return sum(m.size for m in self.members)

    @functools.cached_property
    def takes_each_once(self) -> bool:
        """Whether the mini-batches of every client that trains go through all its examples once."""
        return all(_takes_each_once(m) for m in self.training)

    @functools.cached_property
    def laid_out(self) -> dict[Any, Any]:
        """What `run_round` last made of it, for the next round on it; see `engine.laid`."""
        return {}

    @functools.cached_property
    def last_round(self) -> list[Any]:
        """The last round on it, if there is something to be had from it for the next; see `engine.again`."""
        return []

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("laid_out", "last_round")}

    @functools.cached_property
    def batch_size(self) -> int:
        """The width of the widest mini-batch."""
        return max((m.rows.shape[1] for m in self.training if m.rows is not None), default=1)

    def shares(self, split: bool) -> tuple[np.ndarray, np.ndarray]:
        """The weights of updates and of full gradients, each summing to one.

        With split cohorts the clients that train are others than those of `full`, so their n_i is what their own
        mini-batches show.
        """
        sizes = [
            int(m.counts.sum()) if split and self.explicit and m.counts is not None else m.size for m in self.training
        ]
        updates = np.asarray(sizes, np.float64) if self.weights is None else self.weights
        gradients = self.gradient_weights
        if gradients is None:
            gradients = np.asarray([m.size for m in self.probing], np.float64)
            if self.weights is not None and not split and len(self.weights) == len(gradients):
                gradients = self.weights
        return updates / max(updates.sum(), 1e-300), gradients / max(gradients.sum(), 1e-300)

    def pooled(self) -> Self:
        """All data and all mini-batches in the hands of one client, in order."""
        if not self.training:
            raise DataError("the cohort has no client that trains; give at least one")
        names = list(self.members[0].data)
        data = {name: np.concatenate([m.data[name] for m in self.members]) for name in names}
        offsets = np.cumsum([0, *(len(m.data[names[0]]) for m in self.members)])
        width = self.batch_size
        rows = [pad_rows(m.rows, width) + o for m, o in zip(self.members, offsets, strict=False) if m.rows is not None]
        counts = [m.counts for m in self.members if m.counts is not None]
        trainer = Member(0, data, len(data[names[0]]), np.concatenate(rows), np.concatenate(counts), probes=False)
        others = tuple(dataclasses.replace(m, rows=None, counts=None) for m in self.probing)
        return dataclasses.replace(self, members=(trainer, *others), weights=None)

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
    ) -> Self:
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

        The arrays must stay as they are: a cohort that is run again is not looked at again.
        """
        batches = _entries("batches", () if batches is None else batches)
        if not batches:
            raise DataError("from_batches: the cohort is empty; give at least one client")
        clients = len(batches)
        indices = _ids(ids, clients)
        masks = [None] * clients if mask is None else _entries("mask", mask, clients)
        probing = [] if full is None else _full(full, indices)
        sizes = [m.size for m in probing] if len(probing) == clients else [None] * clients
        training = [
            _member(index, fields, m, n, probes=full is None)
            for index, fields, m, n in zip(indices, batches, masks, sizes, strict=True)
        ]
        _same_fields(training, probing)
        least = max(indices) + 1
        return cls(
            (*training, *probing),
            population=least if population is None else count("from_batches", "population", population, least),
            weights=_weights("weights", weights, clients),
            gradient_weights=_weights("gradient_weights", gradient_weights, clients if full is None else len(probing)),
            explicit=True,
        )


def _takes_each_once(member: Member) -> bool:
    if member.rows is None or member.counts is None:
        return False
    return bool(member.counts.sum() == member.size == len(np.unique(member.rows)))


def pad_rows(rows: np.ndarray, width: int) -> np.ndarray:
    """Widen a table of mini-batches; padding repeats each batch's first row, so it is as finite as the batch itself."""
    if rows.shape[1] == width:
        return rows
    return np.concatenate([rows, np.repeat(rows[:, :1], width - rows.shape[1], axis=1)], axis=1)


def _member(index: int, fields: Columns, mask: Any, size: int | None, probes: bool) -> Member:
    arrays = _columns(f"client {index}", fields)
    shapes = {name: a.shape[:2] for name, a in arrays.items()}
    steps, width = next(iter(shapes.values()), (0, 0)) if all(a.ndim >= 2 for a in arrays.values()) else (0, 0)
    if len(set(shapes.values())) != 1 or not steps * width:
        raise DataError(f"from_batches: client {index} needs arrays [steps, batch, ...] of one length, got {shapes}")
    real = np.ones((steps, width), bool) if mask is None else _mask(index, mask)
    if real.shape != (steps, width):
        raise DataError(f"from_batches: mask of client {index} must have shape {(steps, width)}, got {real.shape}")
    if not real.any():
        raise DataError(f"from_batches: client {index} has no examples: its mask is false everywhere")
    # Real rows first, the first of them repeated as padding; a mini-batch without real rows is no step.
    real_steps = real.any(axis=1)
    order = np.argsort(~real, axis=1, kind="stable")[real_steps]
    counts = real.sum(axis=1)[real_steps]
    rows = np.where(np.arange(width) < counts[:, None], order, order[:, :1])
    rows = rows + np.flatnonzero(real_steps)[:, None] * width
    flat = {name: a.reshape(steps * width, *a.shape[2:]) for name, a in arrays.items()}
    keep, position = np.flatnonzero(real.reshape(-1)), np.cumsum(real.reshape(-1)) - 1  # what is masked goes nowhere
    flat, rows = {name: a[keep] for name, a in flat.items()}, position[rows]
    return Member(
        index, flat, int(counts.sum()) if size is None else size, rows.astype(np.int32), counts.astype(np.int32), probes
    )


def _full(full: Sequence[Columns], indices: Sequence[int]) -> list[Member]:
    """The clients that are asked for their full gradient: the same as those that train if there are as many."""
    entries = _entries("full", full)
    if not entries:
        raise DataError(f"from_batches: full must have at least one client, or be None, got {quote(full)}")
    owners = indices if len(entries) == len(indices) else range(len(entries))
    members = []
    for i, (index, fields) in enumerate(zip(owners, entries, strict=True)):
        data = _columns(f"full[{i}]", fields)
        shapes = {name: a.shape[:1] for name, a in data.items()}
        if len(set(shapes.values())) != 1 or () in shapes.values():
            raise DataError(f"from_batches: full[{i}] needs arrays [n, ...] of one length, got {shapes}")
        n = len(next(iter(data.values())))
        if not n:
            raise DataError(f"from_batches: full[{i}] has no examples")
        members.append(Member(index, data, n))
    return members


def _entries(name: str, values: Any, clients: int | None = None) -> list[Any]:
    """A list with an entry for each client."""
    listed = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    if not listed and not getattr(values, "ndim", 0):
        raise DataError(f"from_batches: {name} must be a list with an entry per client, got {quote(values)}")
    if clients is not None and len(values) != clients:
        raise DataError(f"from_batches: {name} must have one entry per client ({clients}), got {len(values)}")
    return list(values)


def _columns(where: str, fields: Any) -> dict[str, np.ndarray]:
    """One client's data as arrays of numbers."""
    if not isinstance(fields, Mapping):
        raise DataError(f"from_batches: {where} must be a dict {{field: array}}, got {type(fields).__name__}")
    if not fields:
        raise DataError(f"from_batches: {where} has no fields, got {fields!r}")
    return {name: _numbers(f"{name!r} of {where}", value) for name, value in fields.items()}


def _numbers(what: str, value: Any) -> np.ndarray:
    """An array of numbers or truth values."""
    try:
        array = np.asarray(value)
    except ValueError:  # nested lists of unequal lengths
        array = np.asarray(None)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in (np.number, np.bool_)):
        raise DataError(f"from_batches: {what} must be an array of numbers, got {array.dtype}: {quote(value)}")
    return array


def _mask(index: int, mask: Any) -> np.ndarray:
    given = _numbers(f"mask of client {index}", mask)
    real = given.astype(bool)
    if (real != given).any():
        wrong = given[real != given].flat[0]
        raise DataError(f"from_batches: mask of client {index} must be true or false everywhere, got {quote(wrong)}")
    return real


def _same_fields(training: Sequence[Member], probing: Sequence[Member]) -> None:
    def kind(m: Member) -> dict[str, tuple[Any, ...]]:
        return {name: (a.shape[1:], str(a.dtype)) for name, a in m.data.items()}

    first = kind(training[0])
    for place, members in (("entry {}", training), ("full[{}]", probing)):
        for i, member in enumerate(members):
            if kind(member) != first:
                raise DataError(f"from_batches: {place.format(i)} has fields {kind(member)}, others have {first}")


def _weights(name: str, weights: Sequence[float] | None, clients: int) -> np.ndarray | None:
    if weights is None:
        return None
    values = _numbers(name, weights).astype(np.float64)
    if values.shape != (clients,):
        raise DataError(f"from_batches: {name} must have one number per client ({clients}), got shape {values.shape}")
    if not np.isfinite(values).all() or (values < 0).any() or values.sum() <= 0:
        raise DataError(f"from_batches: {name} must be finite, not negative and not all zero, got {values.tolist()}")
    return values


def _ids(ids: Sequence[int] | None, clients: int) -> list[int]:
    if ids is None:
        return list(range(clients))
    values = _entries("ids", ids)
    positions = all(whole(i) and 0 <= i <= _LAST_POSITION for i in values)
    if not positions or not len(values) == len(set(values)) == clients:
        raise ConfigError(
            f"from_batches: ids must be {clients} different positions in the population, got {quote(ids)}"
        )
    return [int(i) for i in values]
