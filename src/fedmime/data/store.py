"""The client store: memory-mapped columns, opened in constant time, read one client at a time.

`writer.py` describes the files. Opening checks their sizes, and their sha256 unless nothing changed since the last
check (`stamp.json` remembers sizes and times): a damaged store is refused, an untouched one opens in milliseconds.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from fedmime.data.integrity import check, read_schema, remember
from fedmime.data.population import TEXT, Columns, Field, Population, describe
from fedmime.data.writer import INDEX, SCHEMA, StoreWriter, field_files, starts_of
from fedmime.errors import DataError
from fedmime.files import whole_directory

TEST, TEST_CLIENTS = "test", "test_clients"


def save(population: Population, path: str | os.PathLike[str]) -> None:
    """Write a population, its test set and its test clients as a store that appears whole or not at all."""
    target = Path(path)
    with whole_directory(target) as temporary:
        write(population, temporary)
    remember(target)


def write(population: Population, directory: Path) -> None:
    """Fill a directory with the store of a population."""
    directory.mkdir(exist_ok=True)
    writer = StoreWriter(directory, population.name, population.fields)
    try:
        for position, client in enumerate(population.ids):
            writer.add(client, population.client_at(position))
        finish(writer, population)
    finally:
        writer.close()


def finish(writer: StoreWriter, population: Population) -> None:
    """Write what is tested on (test clients may be there already), then the schema."""
    children = []
    if population.test_clients is not None:
        if not (writer.directory / TEST_CLIENTS).exists():
            write(population.test_clients, writer.directory / TEST_CLIENTS)
        children.append(TEST_CLIENTS)
    if population.has_own_test:
        _write_test(population, writer.directory / TEST)
        children.append(TEST)
    seals = {child: json.loads((writer.directory / child / SCHEMA).read_text())["seal"] for child in children}
    writer.finish(population.identity(), children=seals)


def from_store(path: str | os.PathLike[str], verify: bool = False) -> Population:
    """Open a store. `verify` hashes every file even if nothing seems to have changed."""
    directory = Path(path)
    schema = check(directory, verify)
    fields = {name: _field(value, directory) for name, value in schema["fields"].items()}
    clients, examples = schema["clients"], schema["examples"]
    begins = _map(directory / "starts.bin", INDEX, (clients + 1,))
    readers = _readers(directory, fields, examples)
    sizes = np.diff(begins)
    if begins[0] != 0 or begins[-1] != examples or (sizes < 0).any():
        raise DataError(
            f"store {str(directory)!r}: starts.bin does not divide {examples} examples among {clients} clients"
        )
    test, test_clients = (_child(directory / name, schema, verify) for name in (TEST, TEST_CLIENTS))
    return Population(
        schema["name"],
        StoredIds(directory, clients),
        sizes,
        fields,
        lambda index: {name: reader(begins[index], begins[index + 1]) for name, reader in readers.items()},
        identity=schema["identity"],
        test=None if test is None else test.pool,
        test_clients=test_clients,
        pooled=lambda: {name: reader(0, examples) for name, reader in readers.items()},
    )


class StoredIds(Sequence[str]):
    """Client ids on disk; the position of an id is found by bisection."""

    def __init__(self, directory: Path, clients: int) -> None:
        self._starts = _map(directory / "ids.starts.bin", INDEX, (clients + 1,))
        self._order = _map(directory / "ids.order.bin", INDEX, (clients,))
        self._text = _map(directory / "ids.bin", np.dtype("u1"), (int(self._starts[-1]),))

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._bytes(index % len(self)).decode()

    def __contains__(self, value: object) -> bool:
        try:
            return isinstance(value, str) and self.index(value) >= 0
        except ValueError:
            return False

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        wanted, low, high = value.encode(), 0, len(self)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._bytes(self._order[middle]) < wanted else (low, middle)
        position = int(self._order[low]) if low < len(self) else -1
        if position < start or (stop is not None and position >= stop) or self._bytes(position) != wanted:
            raise ValueError(f"no client {value!r}")
        return position

    def _bytes(self, position: int) -> bytes:
        return self._text[self._starts[position] : self._starts[position + 1]].tobytes()


def _readers(directory: Path, fields: dict[str, Field], examples: int) -> dict[str, Callable[[int, int], np.ndarray]]:
    """For each field, what gives the examples from one position to another."""
    readers: dict[str, Callable[[int, int], np.ndarray]] = {}
    for file, (name, field) in zip(field_files(fields), fields.items(), strict=True):
        if field.ragged:
            readers[name] = _ragged_reader(directory, file, field, examples)
        else:
            array = _map(directory / file, field.dtype, (examples, *field.shape))
            readers[name] = lambda start, stop, array=array: array[start:stop]
    return readers


def _ragged_reader(directory: Path, file: str, field: Field, examples: int) -> Callable[[int, int], np.ndarray]:
    begins = _map(directory / starts_of(file), INDEX, (examples + 1,))
    values = _map(directory / file, np.dtype("u1") if field.text else field.dtype, (int(begins[-1]),))

    def read(start: int, stop: int) -> np.ndarray:
        cuts = begins[start : stop + 1].tolist()
        piece = values[cuts[0] : cuts[-1]].tobytes() if field.text else values[cuts[0] : cuts[-1]]
        column = np.empty(stop - start, object)
        for i in range(stop - start):
            column[i] = piece[cuts[i] - cuts[0] : cuts[i + 1] - cuts[0]]
        return column

    return read


def _map(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """A read-only plain array over a file of exactly this many values."""
    expected = math.prod(shape) * dtype.itemsize
    if path.stat().st_size != expected:
        raise DataError(f"store file {str(path)!r} has {path.stat().st_size} bytes; its schema says {expected}")
    if not expected:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", shape=shape).view(np.ndarray)


def _field(value: dict[str, Any], directory: Path) -> Field:
    """A field of the schema; anything but plain numbers and bytes is refused."""
    shape, dtype = tuple(value["shape"]), value["dtype"]
    if value["ragged"] and dtype == "bytes":
        return TEXT
    if not all(isinstance(size, int) and size >= 0 for size in shape) or str(dtype)[1:2] not in "biufc":
        raise DataError(f"store {str(directory)!r}: field of dtype {dtype!r} and shape {shape}; accepted are numbers")
    return Field(np.dtype(dtype), shape, bool(value["ragged"]))


def _child(directory: Path, schema: dict[str, Any], verify: bool) -> Population | None:
    """A store inside a store, if the outer one says that it has it and this is the one."""
    if directory.name not in schema["children"]:
        return None
    if read_schema(directory)["seal"] != schema["children"][directory.name]:
        raise DataError(f"store {str(directory)!r} does not belong to the store around it")
    return from_store(directory, verify)


def _write_test(population: Population, directory: Path) -> None:
    """The pooled test set as a store of one client."""
    test: Columns = population.test or {}
    length = len(next(iter(test.values())))
    whole = Population("test", ["test"], [length], population.fields, lambda _: test, identity=describe("test"))
    write(whole, directory)
