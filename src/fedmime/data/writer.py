"""Write a client store: one pass over the clients, each file hashed as it grows.

A store is a directory. `field_K.bin` holds all clients' values of a field, one after another; a ragged field has
`field_K.starts.bin` too, where each example begins. `starts.bin` says where each client begins, in examples.
`ids.bin`, `ids.starts.bin` and `ids.order.bin` (positions in sorted order) hold the ids. `schema.json` describes them,
with the size and sha256 of each, and is written last. Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedmime.data.population import Columns, Field
from fedmime.errors import DataError

FORMAT, VERSION, SCHEMA = "fedmime-store", 1, "schema.json"
INDEX = np.dtype("<i8")


class HashedFile:
    """A file that knows the sha256 of what was written to it."""

    def __init__(self, path: Path) -> None:
        self.name, self.bytes, self._hash = path.name, 0, hashlib.sha256()
        self._file: BinaryIO = path.open("wb")

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)

    def write_array(self, array: np.ndarray) -> None:
        """The bytes of an array in C order."""
        if array.size:
            self.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def close(self) -> dict[str, Any]:
        """Close the file and tell its size and sha256."""
        self._file.close()
        return {"bytes": self.bytes, "sha256": self._hash.hexdigest()}


class StoreWriter:
    """Adds clients one at a time, then `finish`es with the schema. The directory is the caller's to place."""

    def __init__(self, directory: Path, name: str, fields: Mapping[str, Field]) -> None:
        self.directory, self.name, self.fields = directory, name, dict(fields)
        self._ids: list[str] = []
        self._sizes: list[int] = []
        self._files = {"ids.bin": HashedFile(directory / "ids.bin")}
        self._ends: dict[str, int] = {}
        for file, field in zip(field_files(self.fields), self.fields.values(), strict=True):
            self._files[file] = HashedFile(directory / file)
            if field.ragged:
                self._files[starts_of(file)] = HashedFile(directory / starts_of(file))
                self._files[starts_of(file)].write_array(np.zeros(1, INDEX))
                self._ends[file] = 0

    def add(self, client: str, columns: Columns) -> None:
        """Append one client."""
        sizes = {len(columns[name]) for name in self.fields}
        if len(sizes) != 1 or columns.keys() != self.fields.keys():
            raise DataError(f"{self.name}: client {client!r} has fields {sorted(columns)} of lengths {sorted(sizes)}")
        for file, (name, field) in zip(field_files(self.fields), self.fields.items(), strict=True):
            if field.ragged:
                self._add_ragged(file, field, columns[name])
            else:
                self._files[file].write_array(stored(columns[name], field, f"{self.name}: client {client!r}, {name!r}"))
        self._ids.append(client)
        self._sizes.append(sizes.pop())

    def add_part(self, part: Path, ids: list[str], sizes: list[int]) -> None:
        """Append all clients of another store with the same fields, byte for byte."""
        for file, field in zip(field_files(self.fields), self.fields.values(), strict=True):
            copy(part / file, self._files[file])
            if field.ragged:
                starts = np.fromfile(part / starts_of(file), INDEX)
                self._files[starts_of(file)].write_array(starts[1:] + self._ends[file])
                self._ends[file] += int(starts[-1])
        self._ids += ids
        self._sizes += sizes

    def finish(self, identity: str, **extra: Any) -> dict[str, Any]:
        """Write ids, offsets and, last, the schema; gives the schema."""
        encoded = [client.encode() for client in self._ids]
        order = sorted(range(len(encoded)), key=encoded.__getitem__)
        for before, after in itertools.pairwise(order):
            if encoded[before] == encoded[after]:
                raise DataError(f"{self.name}: client id {self._ids[after]!r} appears twice; ids must be unique")
        self._files["ids.bin"].write(b"".join(encoded))
        self._write("ids.starts.bin", starts([len(client) for client in encoded]))
        self._write("ids.order.bin", np.asarray(order, INDEX))
        self._write("starts.bin", starts(self._sizes))
        schema = {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "identity": identity,
            "clients": len(self._ids),
            "examples": sum(self._sizes),
            "fields": {name: describe_field(field) for name, field in self.fields.items()},
            "files": {name: file.close() for name, file in sorted(self._files.items())},
            **extra,
        }
        schema["seal"] = seal(schema)
        (self.directory / SCHEMA).write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")
        return schema

    def close(self) -> None:
        """Close the files without finishing."""
        for file in self._files.values():
            file.close()

    def _write(self, name: str, array: np.ndarray) -> None:
        self._files[name] = HashedFile(self.directory / name)
        self._files[name].write_array(array)

    def _add_ragged(self, file: str, field: Field, column: np.ndarray) -> None:
        items = list(column) if field.text else [stored(item, field, self.name) for item in column]
        self._files[file].write(b"".join(item if isinstance(item, bytes) else item.tobytes() for item in items))
        ends = self._ends[file] + np.cumsum([len(item) for item in items], dtype=INDEX)
        self._files[starts_of(file)].write_array(ends)
        self._ends[file] = int(ends[-1]) if len(ends) else self._ends[file]


def field_files(fields: Mapping[str, Field]) -> list[str]:
    """The file of each field, by position: names of fields never become names of files."""
    return [f"field_{position}.bin" for position in range(len(fields))]


def starts_of(file: str) -> str:
    """Where the beginnings of a ragged field's examples are kept."""
    return file.removesuffix(".bin") + ".starts.bin"


def starts(lengths: list[int]) -> np.ndarray:
    """Beginnings of consecutive pieces, and the end of the last."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=INDEX)]).astype(INDEX)


def stored(array: np.ndarray, field: Field, where: str) -> np.ndarray:
    """The array in the store's byte order, if it is what the field says."""
    if array.dtype != field.dtype or (not field.ragged and array.shape[1:] != field.shape):
        raise DataError(f"{where} holds {array.dtype}{list(array.shape[1:])}; the first client's holds {field}")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def describe_field(field: Field) -> dict[str, Any]:
    """A field for the schema; text is ragged bytes."""
    kind = "bytes" if field.text else field.dtype.newbyteorder("<").str
    return {"dtype": kind, "shape": list(field.shape), "ragged": field.ragged}


def seal(schema: Mapping[str, Any]) -> str:
    """The sha256 of everything else in the schema, so that a damaged schema is noticed."""
    rest = {key: value for key, value in schema.items() if key != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def copy(source: Path, target: HashedFile, block: int = 1 << 22) -> None:
    """Append a file's bytes."""
    with source.open("rb") as file:
        while data := file.read(block):
            target.write(data)
