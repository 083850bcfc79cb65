"""The rows of TFF's SQLite files: one `tf.train.Example` each, gathered into a client's columns."""

from __future__ import annotations

import itertools
from functools import cached_property
from pathlib import Path

import numpy as np

from fedmime.data.example import Value, decode
from fedmime.data.limits import Limits
from fedmime.data.population import TEXT, Columns, Field, empty
from fedmime.data.sqlite import Database
from fedmime.errors import DataError

# What TFF's own parsers make of the flat lists in `tf.train.Example`.
_KNOWN = {
    "pixels": Field(np.dtype(np.float32), (28, 28)),
    "label": Field(np.dtype(np.int32)),
    "image": Field(np.dtype(np.uint8), (32, 32, 3)),
}
_TABLES = {
    "examples": ("split_name", "client_id", "serialized_example_proto"),
    "client_metadata": ("client_id", "split_name", "num_examples"),
}


class Examples:
    """The rows of one split: an example each."""

    def __init__(self, path: Path, split: str, limits: Limits) -> None:
        self.path, self.split, self.limits = path, split, limits
        self.database = Database(path, _TABLES, limits)
        query = "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ? ORDER BY client_id"
        rows = self.database.rows(query, [split])
        if not rows:
            splits = [row[0] for row in self.database.rows("SELECT DISTINCT split_name FROM client_metadata")]
            raise DataError(f"{str(path)!r}: no split {split!r}; it has {splits}")
        limits.check_clients(len(rows), repr(str(path)))
        for client, size in rows:
            if not isinstance(client, str) or not isinstance(size, int) or size < 0:
                raise DataError(
                    f"{str(path)!r}: client {client!r} with num_examples {size!r}; expected text and a count"
                )
        self.ids = [str(row[0]) for row in rows]
        for before, after in itertools.pairwise(self.ids):
            if before == after:
                raise DataError(f"{str(path)!r}: client id {after!r} appears twice in split {split!r}")
        self.sizes = np.array([row[1] for row in rows], np.int64)
        self.fields: dict[str, Field] = {}
        if self.sizes.any():
            self.fields = self._fields_of(int(np.argmax(self.sizes > 0)))

    def read(self, index: int) -> Columns:
        """One client's columns, decoded."""
        where = f"{str(self.path)!r}: client {self.ids[index]!r}"
        examples = [self._decode(blob, where) for blob in self._blobs(index)]
        if len(examples) != self.sizes[index]:
            raise DataError(f"{where} has {len(examples)} examples; client_metadata promises {self.sizes[index]}")
        return {name: _column(field, name, examples, where) for name, field in self.fields.items()}

    def _decode(self, blob: object, where: str) -> dict[str, Value]:
        if not isinstance(blob, bytes):
            raise DataError(f"{where}: an example is {type(blob).__name__}; expected a serialized tf.train.Example")
        try:
            example = decode(blob)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        if self.fields and example.keys() != self.fields.keys():
            raise DataError(
                f"{where}: an example has fields {sorted(example)}; the first one has {sorted(self.fields)}"
            )
        return example

    def _fields_of(self, index: int) -> dict[str, Field]:
        """What the examples hold, from the first one of a client."""
        where = f"{str(self.path)!r}: client {self.ids[index]!r}"
        blobs = self._blobs(index)
        if not blobs:
            raise DataError(f"{where} has no examples; client_metadata promises {self.sizes[index]}")
        example = self._decode(blobs[0], where)
        if not example:
            raise DataError(f"{where}: the first example has no fields")
        return {name: _field(name, example[name], where) for name in sorted(example)}

    def _blobs(self, index: int) -> list[object]:
        client, size = self.ids[index], int(self.sizes[index])
        select = "SELECT serialized_example_proto FROM examples WHERE"
        total = "SELECT SUM(LENGTH(serialized_example_proto)) FROM examples WHERE"
        if self._rows is None:
            where, values = "split_name = ? AND client_id = ?", [self.split, client]
        else:
            first, last = self._rows.get(client, (0, -1))
            where, values = (
                "rowid BETWEEN ? AND ? AND split_name = ? AND client_id = ?",
                [first, last, self.split, client],
            )
        claimed = self.database.rows(f"{total} {where}", values)[0][0] or 0
        self.limits.check_client(int(claimed), f"{str(self.path)!r}: client {client!r}")
        query = f"{select} {where} ORDER BY rowid LIMIT ?"
        return [row[0] for row in self.database.rows(query, [*values, size + 1])]

    @cached_property
    def _rows(self) -> dict[str, tuple[int, int]] | None:
        """Where each client's rows begin and end, for a file without an index (one pass); None where there is one."""
        if self.database.indexed("examples", "client_id"):
            return None
        query = "SELECT client_id, MIN(rowid), MAX(rowid) FROM examples WHERE split_name = ? GROUP BY client_id"
        return {client: (first, last) for client, first, last in self.database.rows(query, [self.split])}


def _field(name: str, value: Value, where: str) -> Field:
    if isinstance(value, list):
        if len(value) != 1:
            raise DataError(f"{where}, field {name!r} holds {len(value)} byte strings; accepted is one per example")
        return TEXT
    known = _KNOWN.get(name)
    if known is not None and int(np.prod(known.shape)) == len(value) and known.dtype.kind in (value.dtype.kind, "u"):
        return known
    return Field(value.dtype, () if len(value) == 1 else (len(value),))


def _column(field: Field, name: str, examples: list[dict[str, Value]], where: str) -> np.ndarray:
    """One field of all examples, in the shape and dtype that the first example of the file has."""
    column = empty(field, len(examples))
    length = 1 if field.text else int(np.prod(field.shape))
    for i, example in enumerate(examples):
        value = example[name]
        if len(value) != length or isinstance(value, list) != field.text:
            raise DataError(
                f"{where}, field {name!r}: example {i} holds {len(value)} values; expected {length} of {field}"
            )
        if field.text:
            column[i] = value[0]
            continue
        fits = np.asarray(value).astype(field.dtype)
        if field.dtype.kind in "iu" and (fits != value).any():
            raise DataError(f"{where}, field {name!r}: example {i} holds {value!r:.40}, too large for {field.dtype}")
        column[i] = fits.reshape(field.shape)
    return column
