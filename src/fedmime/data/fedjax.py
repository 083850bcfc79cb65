"""FedJAX's published SQLite files: a row per client, zlib around msgpack around arrays."""

from __future__ import annotations

import math
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fedmime.data.arrays import checked, same_fields
from fedmime.data.checksums import require
from fedmime.data.limits import DEFAULT, Limits
from fedmime.data.population import Columns, Population, describe
from fedmime.data.sqlite import Database
from fedmime.errors import DataError
from fedmime.files import sha256_of

_TABLES = {"federated_data": ("client_id", "data", "num_examples")}
_DTYPES = {"bool", "float16", "float32", "float64", "complex64", "complex128"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
_NDARRAY, _COMPLEX, _SCALAR, _BYTES_ARRAY = 1, 2, 3, 4


def from_fedjax_sqlite(path: str | os.PathLike[str], sha256: str | None = None, limits: Limits = DEFAULT) -> Population:
    """The clients of a FedJAX SQLite file, in the order of its rows."""
    file = require(Path(path), sha256)
    database = Database(file, _TABLES, limits)
    rows = database.rows("SELECT rowid, client_id, num_examples FROM federated_data ORDER BY rowid")
    limits.check_clients(len(rows), repr(str(file)))
    if not rows:
        raise DataError(f"{str(file)!r}: table 'federated_data' holds no clients")
    ids = [_id(client, file) for _, client, _ in rows]
    seen: set[str] = set()
    for client, (_, _, size) in zip(ids, rows, strict=True):
        if client in seen:
            raise DataError(f"{str(file)!r}: client id {client!r} appears twice")
        if not isinstance(size, int) or size < 0:
            raise DataError(f"{str(file)!r}: client {client!r} has num_examples {size!r}; expected a count")
        seen.add(client)
    position = [row[0] for row in rows]
    sizes = np.array([row[2] for row in rows], np.int64)

    def read(index: int) -> Columns:
        where = f"{str(file)!r}: client {ids[index]!r}"
        (data,) = database.rows("SELECT data FROM federated_data WHERE rowid = ?", [position[index]])[0]
        columns, found = checked(unpack(data, where, limits), where)
        if len(next(iter(columns.values()))) != sizes[index]:
            raise DataError(f"{where} has {len(next(iter(columns.values())))} examples; num_examples is {sizes[index]}")
        if index != first:
            same_fields(fields, found, where)
        return columns

    first = int(np.argmax(sizes > 0))
    fields = checked(read(first), f"{str(file)!r}: client {ids[first]!r}")[1]
    identity = lambda: describe("fedjax-sqlite", sha256_of(file))
    return Population(file.stem, ids, sizes, fields, read, identity=identity)


def unpack(data: Any, where: str, limits: Limits = DEFAULT) -> dict[str, Any]:
    """The fields of one client: `zlib(msgpack({name: array}))`."""
    import msgpack

    if not isinstance(data, bytes):
        raise DataError(f"{where}: data is {type(data).__name__}; expected zlib-compressed msgpack")
    try:
        decoder = zlib.decompressobj()
        packed = decoder.decompress(data, limits.client_bytes)
        if decoder.unconsumed_tail:
            limits.check_client(limits.client_bytes + 1, where)
        if not decoder.eof:
            raise DataError(f"{where}: the compressed data is cut off")
        fields = msgpack.unpackb(packed, ext_hook=lambda code, inner: _array(code, inner, where), raw=False)
    except (zlib.error, ValueError, TypeError, msgpack.UnpackException) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{where}: not zlib-compressed msgpack: {' '.join(str(error).split())[:100]}") from None
    if not isinstance(fields, dict) or not all(
        isinstance(name, str) and isinstance(value, np.ndarray) for name, value in fields.items()
    ):
        raise DataError(f"{where}: holds {type(fields).__name__}; expected a dict of arrays by name")
    return fields


def _array(code: int, data: bytes, where: str) -> Any:
    """An extension type of FedJAX: an array of numbers, of byte strings, or a single number."""
    import msgpack

    if code == _COMPLEX:
        return complex(*msgpack.unpackb(data))
    if code not in (_NDARRAY, _SCALAR, _BYTES_ARRAY):
        raise DataError(f"{where}: msgpack extension type {code}; accepted are 1 to 4")
    shape, *content = msgpack.unpackb(data, raw=True)
    if len(content) != (1 if code == _BYTES_ARRAY else 2):
        raise DataError(f"{where}: an array of {len(content)} parts")
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise DataError(f"{where}: an array of shape {shape}")
    return _texts(shape, content[0], where) if code == _BYTES_ARRAY else _numbers(shape, content[0], content[1], where)


def _numbers(shape: list[int], dtype: Any, values: Any, where: str) -> np.ndarray:
    if not isinstance(dtype, bytes) or not isinstance(values, bytes):
        raise DataError(f"{where}: an array of {type(values).__name__} with dtype {dtype!r:.40}; expected bytes")
    name = dtype.decode("ascii", "replace")
    if name not in _DTYPES:
        raise DataError(f"{where}: an array of dtype {name!r}; accepted are {', '.join(sorted(_DTYPES))}")
    if math.prod(shape) * np.dtype(name).itemsize != len(values):
        raise DataError(f"{where}: an array of shape {shape} and dtype {name} in {len(values)} bytes")
    return np.frombuffer(values, np.dtype(name).newbyteorder("<")).reshape(shape)


def _texts(shape: list[int], values: list[Any], where: str) -> np.ndarray:
    if shape != [len(values)] or not all(isinstance(value, bytes) for value in values):
        raise DataError(f"{where}: an array of {len(values)} byte strings with shape {shape}")
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _id(client: Any, file: Path) -> str:
    """Client ids are blobs; those that are not text keep their bytes as escapes."""
    if not isinstance(client, bytes | str):
        raise DataError(f"{str(file)!r}: client id {client!r} is {type(client).__name__}; expected bytes")
    return client if isinstance(client, str) else client.decode("utf-8", "backslashreplace")
