"""A population: who the clients are, how many examples each has, and how to read one of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self, overload

import numpy as np

from fedmime.errors import DataError
from fedmime.origin import Origin

Columns = dict[str, np.ndarray]


class Field(NamedTuple):
    """What one column holds, without its first axis. A ragged column is an object array of bytes or of 1-D arrays."""

    dtype: np.dtype
    shape: tuple[int, ...] = ()
    ragged: bool = False

    @property
    def text(self) -> bool:
        """Whether the examples are byte strings."""
        return self.ragged and self.dtype.kind == "S"

    def __str__(self) -> str:
        if self.ragged:
            return "bytes" if self.text else f"{self.dtype.name}[*]"
        return f"{self.dtype.name}{list(self.shape) if self.shape else ''}"


TEXT = Field(np.dtype("S"), (), True)


class Ids(Sequence[str]):
    """Client ids in memory; the position of an id costs one dictionary look-up, made on first use."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = ids

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {client: position for position, client in enumerate(self._ids)}

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._ids[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __contains__(self, value: object) -> bool:
        return value in self._positions

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        position = self._positions.get(value, -1)
        if not start <= position < (len(self) if stop is None else stop):
            raise ValueError(f"no client {value!r}")
        return position


def _unchanged() -> None:
    """The check of clients that cannot change."""


class Slices(NamedTuple):
    """What reads the clients of a population out of one set of columns; a client's are views, never copies."""

    columns: Columns
    starts: np.ndarray
    """[clients + 1] position of each client's first example."""

    def __call__(self, index: int) -> Columns:
        start, stop = self.starts[index], self.starts[index + 1]
        return {name: column[start:stop] for name, column in self.columns.items()}


class Population:
    """Clients that can be read one at a time, and what the server tests on.

    `read(position)` gives one client's columns and is called for no other client, so a population of any size
    costs what its cohorts cost. `test_clients` is held-out data by client, `test` the pooled set: given, made by a
    function on first use, or else all test clients together. `pooled` is a quick way to all examples, if there is one.
    `resident`: what is read stays in memory as it is, so that arrays need not be copied while a run goes on.
    `check` raises if what clients are read from has changed; it is called before every cohort, so it must be quick.
    `origin` is a call that opens the same population in another process; it is then pickled as that call.
    """

    def __init__(
        self,
        name: str,
        ids: Sequence[str],
        sizes: np.ndarray | Sequence[int],
        fields: Mapping[str, Field],
        read: Callable[[int], Columns],
        *,
        identity: str | Callable[[], str],
        test: Columns | Callable[[], Columns] | None = None,
        test_clients: Population | None = None,
        pooled: Callable[[], Columns] | None = None,
        resident: bool = False,
        check: Callable[[], None] = _unchanged,
        origin: Origin | None = None,
    ) -> None:
        self.name = name
        self.ids = ids if isinstance(ids, Sequence) and not isinstance(ids, list | tuple) else Ids(ids)
        self.sizes = np.asarray(sizes, dtype=np.int64)
        self.fields = dict(fields)
        self.test_clients, self.resident, self.check = test_clients, resident, check
        self._read, self._identity, self._test, self._pooled, self.origin = read, identity, test, pooled, origin
        if len(self.ids) != len(self.sizes):
            raise DataError(f"{name}: {len(self.ids)} ids but {len(self.sizes)} sizes")

    def __len__(self) -> int:
        return len(self.sizes)

    def __repr__(self) -> str:
        return f"Population({self.name!r}, clients={len(self)}, examples={int(self.sizes.sum())}, {self._signature()})"

    @property
    def test(self) -> Columns | None:
        """The server's pooled test set, or None where nothing is held out."""
        self.check()
        return self._pooled_test

    @cached_property
    def _pooled_test(self) -> Columns | None:
        if self._test is None and self.test_clients is not None:
            return self.test_clients.pool()
        return self._test() if callable(self._test) else self._test

    @property
    def has_own_test(self) -> bool:
        """Whether `test` is a set of its own rather than the test clients pooled."""
        return self._test is not None

    def pool(self) -> Columns:
        """All examples of all clients, in client order, as one set of columns."""
        self.check()
        if self._pooled is not None:
            return self._pooled()
        parts = [self._read(index) for index in np.flatnonzero(self.sizes).tolist()]
        parts = parts or [{name: empty(field) for name, field in self.fields.items()}]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.fields}

    def client_at(self, index: int) -> Columns:
        """The columns of the client at a position; the first axis of each is its examples."""
        index, clients = int(index), len(self)
        if not -clients <= index < clients:
            raise DataError(f"{self.name}: client position {index} lies outside a population of {clients}")
        return self._read(index % clients)

    def client(self, client_id: str) -> Columns:
        """The columns of the client with this id."""
        try:
            position = self.ids.index(client_id)
        except ValueError:
            known = f"ids look like {self.ids[0]!r}" if len(self) else "the population is empty"
            raise DataError(f"{self.name}: no client {client_id!r}; {known}") from None
        return self._read(position)

    def identity(self) -> str:
        """A sha256 that says which data this is; two populations with the same one hold the same examples."""
        return self._stable_identity

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory-mapped store that `from_store` opens; `path` must not exist yet."""
        from fedmime.data.store import save

        save(self, path)

    def made_by(self, origin: Origin) -> Self:
        """The same population, which remembers how it was made. It is pickled as that call."""
        new = self._copied()
        new.origin = origin
        return new

    def portable(self) -> Population:
        """The same clients for another process, without what the server tests on.

        Pickled, a population in memory is a few large arrays, one with an origin the call that opens it, such as the
        path of a store, and any other its parts.
        """
        if self.resident and not any(field.ragged for field in self.fields.values()):
            read = Slices(self.pool(), np.concatenate([[0], np.cumsum(self.sizes)]))
            return Population(
                self.name, self.ids, self.sizes, self.fields, read, identity=self.identity(), resident=True
            )
        if self.origin is not None:
            return self
        light = self._copied()
        light._test = light._pooled = light.test_clients = None
        return light

    def _copied(self) -> Self:
        """A shallow copy without what is cached; that of `copy` would open a store again."""
        new = object.__new__(type(self))
        new.__dict__ |= self.__getstate__()
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        return super().__reduce_ex__(protocol) if self.origin is None else self.origin.pickled

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_pooled_test"}  # which is a cache

    @cached_property
    def _stable_identity(self) -> str:
        return self._identity() if callable(self._identity) else self._identity

    def _signature(self) -> str:
        return ", ".join(f"{name}: {field}" for name, field in self.fields.items())


def empty(field: Field, examples: int = 0) -> np.ndarray:
    """A column of a client without examples (or an unfilled one of `examples`)."""
    return np.empty((examples, *field.shape), object if field.ragged else field.dtype)


def describe(*parts: object) -> str:
    """The sha256 of a description: for generated data, its generator's name, version and arguments."""
    return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()


def digest(columns_by_client: Iterator[tuple[str, Columns]]) -> str:
    """The sha256 of ids, dtypes, shapes and contents: slow for big data, exact for any."""
    total = hashlib.sha256()
    for client, columns in columns_by_client:
        total.update(repr((client, sorted(columns))).encode())
        for name in sorted(columns):
            array = columns[name]
            total.update(repr((array.dtype.str, array.shape)).encode())
            for piece in array if array.dtype == object else [array]:
                data = piece if isinstance(piece, bytes) else np.ascontiguousarray(piece)
                total.update(len(data).to_bytes(8, "little") if isinstance(data, bytes) else b"")
                total.update(data if isinstance(data, bytes) else data.data.cast("B") if data.size else b"")
    return total.hexdigest()
