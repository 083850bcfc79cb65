"""The schema of a store, `schema.json`: which fields and files there are. Whatever it may hold is checked here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmime.data.population import TEXT, Field
from fedmime.data.writer import FORMAT, SCHEMA, VERSION, field_files, seal, starts_of
from fedmime.errors import DataError

TEST, TEST_CLIENTS = "test", "test_clients"  # the stores that may lie inside a store
_KINDS = {
    "name": str,
    "identity": str,
    "clients": int,
    "examples": int,
    "fields": dict,
    "files": dict,
    "children": dict,
}
_LARGEST = 2**62  # bytes of a field: what can be an address


def read_schema(directory: Path) -> dict[str, Any]:
    """The schema of a store, if it is whole, of a version known here, and makes sense."""
    where = f"store {str(directory)!r}: {SCHEMA}"
    file = directory / SCHEMA
    if not file.exists():
        raise DataError(f"{str(directory)!r} is not a store: it has no {SCHEMA}")
    if file.is_symlink() or not file.is_file():
        raise DataError(f"{where} is not a plain file")
    try:
        schema = json.loads(file.read_text(encoding="utf-8"))
        told, version, form = schema["seal"], schema["version"], schema["format"]
        found = seal(schema)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{where} cannot be read: {type(error).__name__}") from None
    if form != FORMAT or version != VERSION:
        raise DataError(f"store {str(directory)!r}: version {version!r:.40} of {form!r:.40}; accepted is {VERSION}")
    if told != found:
        raise DataError(f"{where}: sha256 differs: found {found}, expected {told!r:.80}")
    try:
        _check(schema)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
    return schema


def fields_of(schema: Mapping[str, Any]) -> dict[str, Field]:
    """What the columns of a store hold; `ValueError` if they are no plain numbers and no bytes."""
    return {name: _field(name, told) for name, told in schema["fields"].items()}


def files_of(fields: Mapping[str, Field]) -> set[str]:
    """The files that a store with these fields has beside its schema."""
    names = field_files(fields)
    ragged = {starts_of(file) for file, field in zip(names, fields.values(), strict=True) if field.ragged}
    return {"ids.bin", "ids.starts.bin", "ids.order.bin", "starts.bin", *names, *ragged}


def _check(schema: dict[str, Any]) -> None:
    for key, kind in _KINDS.items():
        _of_kind(repr(key), schema.get(key), kind)
    if schema["clients"] < 0 or schema["examples"] < 0:
        raise ValueError(f"{schema['clients']} clients with {schema['examples']} examples; counts are not negative")
    fields = fields_of(schema)
    if not fields:
        raise ValueError("'fields' is empty; a store has at least one")
    for name, field in fields.items():
        if math.prod(max(size, 1) for size in field.shape) * field.dtype.itemsize * schema["examples"] > _LARGEST:
            raise ValueError(f"field {name!r} claims {schema['examples']} examples of {field}, which no file can hold")
    if odd := schema["files"].keys() ^ files_of(fields):
        raise ValueError(f"'files' must list the files of its fields and no others, which is wrong for {min(odd)!r}")
    for name, told in schema["files"].items():
        _of_kind(f"file {name!r}", told, dict)
        _of_kind(f"bytes of file {name!r}", told.get("bytes"), int)
        _of_kind(f"sha256 of file {name!r}", told.get("sha256"), str)
    if odd := schema["children"].keys() - {TEST, TEST_CLIENTS}:
        raise ValueError(f"'children' names {min(odd)!r}; accepted are {TEST!r} and {TEST_CLIENTS!r}")


def _of_kind(what: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{what} must be {kind.__name__}, got {value!r:.80}")


def _field(name: str, told: Any) -> Field:
    accepted = "accepted are a dtype of numbers or 'bytes', a shape of whole numbers, and whether it is ragged"
    refusal = ValueError(f"field {name!r} is {told!r:.120}; {accepted}")
    if not isinstance(told, dict) or told.keys() != {"dtype", "shape", "ragged"}:
        raise refusal
    kind, shape, ragged = told["dtype"], told["shape"], told["ragged"]
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape) or len(shape) > 16:
        raise refusal
    if ragged is True and kind == "bytes" and not shape:
        return TEXT
    try:
        dtype = np.dtype(kind)
    except (TypeError, ValueError):
        raise refusal from None
    if dtype.kind not in "biufc" or dtype.str != kind or type(ragged) is not bool or (ragged and shape):
        raise refusal
    return Field(dtype, tuple(shape), ragged)
