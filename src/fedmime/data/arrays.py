"""Populations from arrays in memory, checked before anything is trained on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedmime.data.padding import Pad, check_pad
from fedmime.data.population import TEXT, Columns, Field, Population, describe, digest
from fedmime.errors import DataError

_NUMBERS = "biufc"


def from_arrays(
    clients: Mapping[str, Mapping[str, Any]] | Iterable[tuple[str, Mapping[str, Any]]],
    test: Mapping[str, Any] | None = None,
    test_clients: Population | None = None,
    name: str = "arrays",
    pad: Mapping[str, Pad] | None = None,
) -> Population:
    """A population from `{id: {field: array}}`, or from an iterable of `(id, {field: array})`.

    Every client has the same fields, of the same dtype and shape after the first axis, and as many examples in one
    field as in the other. A client without examples stays, with size 0. Text is bytes or str; sequences of differing
    lengths are a list of 1-D arrays; `pad` says by field how they become rows of one length, which models need. Arrays
    must stay as they are while a run goes on: it may read them at any time.
    """
    check_pad("from_arrays", pad or {})
    columns: dict[str, Columns] = {}
    fields: dict[str, Field] = {}
    for client, given in clients.items() if isinstance(clients, Mapping) else clients:
        if not isinstance(client, str):
            raise DataError(f"{name}: client id {client!r} is {type(client).__name__}; ids are str")
        if client in columns:
            raise DataError(f"{name}: client id {client!r} appears twice; ids must be unique")
        columns[client], found = checked(given, f"{name}: client {client!r}", pad)
        fields = fields or found
        same_fields(fields, found, f"{name}: client {client!r}")
    if not columns:
        raise DataError(f"{name}: no clients given; at least one is needed")
    held_out = None
    if test is not None:
        held_out, found = checked(test, f"{name}: test set", pad)
        same_fields(fields, found, f"{name}: test set")
    if test_clients is not None:
        same_fields(fields, test_clients.fields, f"{name}: test_clients")
    return in_memory(name, columns, fields, held_out, test_clients)


def in_memory(
    name: str,
    columns: dict[str, Columns],
    fields: Mapping[str, Field],
    test: Columns | None = None,
    test_clients: Population | None = None,
    identity: str | None = None,
) -> Population:
    """A population over columns already known to be good."""
    values = list(columns.values())
    first = next(iter(fields))
    return Population(
        name,
        list(columns),
        [len(value[first]) for value in values],
        fields,
        lambda index: dict(values[index]),
        identity=identity or (lambda: _identity(columns, test, test_clients)),
        test=test,
        test_clients=test_clients,
        resident=True,
    )


def dealt(
    name: str,
    pooled: Columns,
    fields: Mapping[str, Field],
    parts: Sequence[np.ndarray],
    ids: Sequence[str],
    test: Columns | None = None,
    test_clients: Population | None = None,
) -> Population:
    """A population whose client i has the id `ids[i]` and the examples `parts[i]` of the pooled columns."""
    order = np.concatenate(parts)
    copied = {field: column[order] for field, column in pooled.items()}  # clients are stretches, which are not copied
    ends = np.cumsum([len(part) for part in parts])
    stretches = (slice(end - len(part), end) for end, part in zip(ends, parts, strict=True))
    columns = {i: {k: v[own] for k, v in copied.items()} for i, own in zip(ids, stretches, strict=True)}
    if len(columns) != len(parts):
        raise DataError(f"{name}: ids are not unique")
    return in_memory(name, columns, fields, test, test_clients)


def _identity(columns: dict[str, Columns], test: Columns | None, test_clients: Population | None) -> str:
    """All clients and everything that is tested on."""
    contents = digest(iter([*columns.items(), ("\0test", test or {})]))
    return contents if test_clients is None else describe(contents, test_clients.identity())


def checked(
    given: Mapping[str, Any], where: str, pad: Mapping[str, Pad] | None = None
) -> tuple[Columns, dict[str, Field]]:
    """The columns as arrays and what they hold, or one line saying what is wrong `where`; sequences are padded."""
    if not isinstance(given, Mapping) or not given:
        raise DataError(f"{where} is {type(given).__name__} {given!r:.40}; accepted is a non-empty dict of arrays")
    columns, fields = {}, {}
    for field in (pad or {}).keys() - given.keys():
        raise DataError(f"{where} has no field {field!r}, which pad names; it has {sorted(given)}")
    for field, values in given.items():
        columns[field], fields[field] = column(values, f"{where}, field {field!r}")
        if pad and field in pad:
            if fields[field].text:
                raise DataError(f"{where}, field {field!r} holds text; only sequences of numbers can be padded")
            place = lambda row, field=field: f"{where}, field {field!r}, example {row}"
            columns[field] = pad[field](columns[field], fields[field].dtype, place)
            fields[field] = Field(fields[field].dtype, columns[field].shape[1:])
    lengths = {field: len(values) for field, values in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{field} has {length}" for field, length in lengths.items())
        raise DataError(f"{where}: fields differ in length: {told}; each field needs one entry per example")
    return columns, fields


def column(values: Any, where: str) -> tuple[np.ndarray, Field]:
    """One column as an array without objects other than bytes and 1-D arrays, and what it holds."""
    try:
        array = _from_list(values) if isinstance(values, list | tuple) else np.asarray(values)
    except ValueError:  # lists of unequal lengths inside of lists
        raise DataError(f"{where} holds {values!r:.40}; sequences of differing lengths are 1-D arrays") from None
    if array.ndim == 0:
        raise DataError(f"{where} is a single value {values!r:.40}; accepted are arrays whose first axis is examples")
    if array.dtype.kind in "SU" or array.dtype == object:
        return _ragged(array, where)
    if array.dtype.kind not in _NUMBERS:
        raise DataError(f"{where} has dtype {array.dtype}; accepted are numbers, text and sequences of numbers")
    return array, Field(array.dtype, array.shape[1:])


def same_fields(expected: Mapping[str, Field], found: Mapping[str, Field], where: str) -> None:
    """Raise unless the fields, their dtypes and their shapes are those of the first client."""
    if expected.keys() != found.keys():
        raise DataError(f"{where} has fields {sorted(found)}; the first client has {sorted(expected)}")
    for field, wanted in expected.items():
        if found[field] != wanted:
            raise DataError(f"{where}, field {field!r} holds {found[field]}; the first client's holds {wanted}")


def _from_list(values: list[Any] | tuple[Any, ...]) -> np.ndarray:
    """A regular array where the items allow it, else an array of the items."""
    if not any(isinstance(value, bytes | str) for value in values):
        try:
            return np.asarray(values)
        except ValueError:
            values = [np.asarray(value) if isinstance(value, Sequence) else value for value in values]
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _ragged(array: np.ndarray, where: str) -> tuple[np.ndarray, Field]:
    """Text as an object array of bytes; sequences as an object array of 1-D arrays; anything else is refused."""
    if array.ndim != 1:
        raise DataError(f"{where} has dtype {array.dtype} and {array.ndim} axes; text and sequences have one axis")
    items = [value.encode() if isinstance(value, str) else value for value in array.tolist()]
    result = np.empty(len(items), object)
    result[:] = items
    if all(isinstance(item, bytes) for item in items):
        return result, TEXT
    kinds = {item.dtype if isinstance(item, np.ndarray) and item.ndim == 1 else type(item) for item in items}
    kind = kinds.pop()
    if kinds or not isinstance(kind, np.dtype) or kind.kind not in _NUMBERS:
        raise DataError(f"{where} has dtype object; accepted are numbers, bytes, or 1-D arrays of one dtype")
    return result, Field(kind, (), True)
