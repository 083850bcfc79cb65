"""The client store: memory-mapped columns, opened in constant time, read one client at a time.

`writer.py` describes the files. Opening checks their names and sizes, and their sha256 and contents unless nothing
changed since the last check (`stamp.json` remembers sizes and times): a damaged or crafted store is refused, an
untouched one opens in milliseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from fedmime.data.integrity import check, remember
from fedmime.data.maps import Maps
from fedmime.data.population import Columns, Field, Population, describe
from fedmime.data.schema import TEST, TEST_CLIENTS, fields_of, read_schema
from fedmime.data.writer import INDEX, SCHEMA, StoreWriter, field_files, starts_of
from fedmime.errors import DataError
from fedmime.files import whole_directory
from fedmime.origin import Origin


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
    """Open a store. `verify` looks into every file even if nothing seems to have changed."""
    directory, maps = Path(path), Maps()
    schema = check(directory, verify)
    fields = fields_of(schema)
    clients, examples = schema["clients"], schema["examples"]
    begins = maps.array(directory / "starts.bin", INDEX, (clients + 1,))
    readers = _readers(maps, directory, fields, examples)
    test, test_clients = (_child(directory / name, schema, verify) for name in (TEST, TEST_CLIENTS))

    def unchanged() -> None:
        maps.check()
        for child in (test, test_clients):
            if child is not None:
                child.check()

    return Population(
        schema["name"],
        StoredIds(maps, directory, clients),
        np.diff(begins),
        fields,
        lambda index: {name: reader(begins[index], begins[index + 1]) for name, reader in readers.items()},
        identity=schema["identity"],
        test=None if test is None else test.pool,
        test_clients=test_clients,
        pooled=lambda: {name: reader(0, examples) for name, reader in readers.items()},
        check=unchanged,
        origin=Origin("fedmime.data.store:from_store", (str(directory.absolute()),)),
    )


class StoredIds(Sequence[str]):
    """Client ids on disk; the position of an id is found by bisection."""

    def __init__(self, maps: Maps, directory: Path, clients: int) -> None:
        self._origin = str(directory.absolute()), clients
        self._starts = maps.array(directory / "ids.starts.bin", INDEX, (clients + 1,))
        self._order = maps.array(directory / "ids.order.bin", INDEX, (clients,))
        self._text = maps.array(directory / "ids.bin", np.dtype("u1"), (int(self._starts[-1]),))

    def __reduce__(self) -> tuple[Any, ...]:
        return _stored_ids, self._origin

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


def _stored_ids(directory: str, clients: int) -> StoredIds:
    return StoredIds(Maps(), Path(directory), clients)


def _readers(
    maps: Maps, directory: Path, fields: dict[str, Field], examples: int
) -> dict[str, Callable[[int, int], np.ndarray]]:
    """For each field, what gives the examples from one position to another."""
    readers: dict[str, Callable[[int, int], np.ndarray]] = {}
    for file, (name, field) in zip(field_files(fields), fields.items(), strict=True):
        if field.ragged:
            readers[name] = _ragged_reader(maps, directory, file, field, examples)
        else:
            array = maps.array(directory / file, field.dtype, (examples, *field.shape))
            readers[name] = lambda start, stop, array=array: array[start:stop]
    return readers


def _ragged_reader(
    maps: Maps, directory: Path, file: str, field: Field, examples: int
) -> Callable[[int, int], np.ndarray]:
    begins = maps.array(directory / starts_of(file), INDEX, (examples + 1,))
    values = maps.array(directory / file, np.dtype("u1") if field.text else field.dtype, (int(begins[-1]),))

    def read(start: int, stop: int) -> np.ndarray:
        cuts = begins[start : stop + 1].tolist()
        piece = values[cuts[0] : cuts[-1]].tobytes() if field.text else values[cuts[0] : cuts[-1]]
        column = np.empty(stop - start, object)
        for i in range(stop - start):
            column[i] = piece[cuts[i] - cuts[0] : cuts[i + 1] - cuts[0]]
        return column

    return read


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
