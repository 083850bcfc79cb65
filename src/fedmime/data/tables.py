"""Populations from tables: rows become examples, one column says whose they are.

Equal tables give equal populations, from whichever reader they come. Clients are in the order of their ids: by number
where all of them are whole numbers, as text otherwise. A client's examples keep the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmime.data.arrays import checked, dealt, same_fields
from fedmime.data.cells import Style, array_of
from fedmime.data.padding import Pad, check_pad
from fedmime.data.population import Columns, Field, Population
from fedmime.errors import ConfigError, DataError

Choice = str | Sequence[str]
Groups = tuple[list[str], list[np.ndarray]]  # clients, and the rows of each


class Table(NamedTuple):
    """Columns of equal length by name, whatever they come from."""

    name: str
    """For messages."""
    columns: Sequence[str]
    rows: int
    cells: Callable[[str], Any]
    """The cells of one column: an array of numbers, or a sequence of Python values."""
    row: Callable[[int], str] = "row {}".format
    """Where a row is, in words."""

    def place(self, column: str) -> Callable[[int], str]:
        """What names a cell of a column in messages."""
        return lambda row: f"{self.name}: column {column!r}, {self.row(row)}"


class Rules(NamedTuple):
    """How the columns of a table become the fields of a population."""

    reader: str
    """The public function, for messages."""
    by: str | None
    fields: Mapping[str, Choice]
    """Field to column; several columns become the last axis of one field."""
    dtypes: Mapping[str, Any]
    pad: Mapping[str, Pad]
    classes: Sequence[str] | None
    """The labels of field `y` in words, in the order of their numbers."""


def rules(
    reader: str,
    table: Table,
    by: str | None,
    x: Choice | None,
    y: str | None,
    fields: Mapping[str, Choice] | None,
    dtypes: Mapping[str, Any] | None,
    pad: Mapping[str, Pad] | None,
    classes: Sequence[str] | None,
) -> Rules:
    """The rules that a reader's arguments say, with columns that the table has."""
    if by is not None and by not in table.columns:
        raise DataError(f"{table.name}: by={by!r} is no column; accepted are {_listed(table.columns)}")
    chosen: dict[str, Choice] = {}
    for field, columns in {"x": x, "y": y, **(fields or {})}.items():
        if columns is None:
            continue
        for column in [columns] if isinstance(columns, str) else columns:
            if column not in table.columns:
                raise DataError(f"{table.name}: {field}={column!r} is no column; accepted are {_listed(table.columns)}")
        if not columns:
            raise ConfigError(f"{reader}: {field} must name a column, got {columns!r}")
        chosen[field] = columns
    chosen = chosen or {column: column for column in table.columns if column != by}
    if not chosen:
        raise DataError(f"{table.name}: no column is left for examples beside by={by!r}")
    for name, given in (("dtypes", dtypes), ("pad", pad)):
        if odd := (given or {}).keys() - chosen.keys():
            raise ConfigError(f"{reader}: {name} names field {min(odd)!r}; accepted are {_listed(list(chosen))}")
    check_pad(reader, pad or {})
    if classes is not None and "y" not in chosen:
        raise ConfigError(f"{reader}: classes names the labels of field 'y', which is none of {_listed(list(chosen))}")
    return Rules(reader, by, chosen, dtypes or {}, pad or {}, classes)


def population_of(table: Table, rule: Rules, test: Table | None, name: str, groups: Groups | None = None) -> Population:
    """The population of a table. A test table with the column `by` gives test clients, another one a pooled set.

    Args:
        groups: the clients and their rows, for tables without a column that says so.
    """
    if not table.rows:
        raise DataError(f"{table.name}: no rows; at least one is needed")
    parts = alike([_columns(each, rule) for each in (table, test) if each is not None], rule.dtypes)
    pooled, fields = checked(parts[0], table.name)
    held_out, test_clients = None, None
    if test is not None:
        held_out, found = checked(parts[1], test.name)
        same_fields(fields, found, test.name)
        if rule.by is not None and rule.by in test.columns:
            test_clients, held_out = _dealt(name, test, held_out, found, rule.by), None
    if groups is None:
        assert rule.by is not None
        return _dealt(name, table, pooled, fields, rule.by, held_out, test_clients)
    ids, rows = groups
    return dealt(name, pooled, fields, rows, ids, held_out, test_clients)


def _dealt(
    name: str,
    table: Table,
    columns: Columns,
    fields: Mapping[str, Field],
    by: str,
    test: Columns | None = None,
    test_clients: Population | None = None,
) -> Population:
    ids, rows = grouped(ids_of(table.cells(by), table.place(by)))
    return dealt(name, columns, fields, rows, ids, test, test_clients)


def _columns(table: Table, rule: Rules) -> Columns:
    """The fields of a table as arrays whose first axis is rows."""
    return {field: _field(table, rule, field, columns) for field, columns in rule.fields.items()}


def alike(parts: Sequence[Columns], dtypes: Mapping[str, Any]) -> list[Columns]:
    """The same columns with one dtype each: whole numbers join float32 where other parts hold such."""
    real = {
        field
        for part in parts
        for field, column in part.items()
        if field not in dtypes and column.dtype == np.float32 and len(column)
    }
    return [
        {
            field: column.astype(np.float32) if field in real and column.dtype == np.int32 else column
            for field, column in part.items()
        }
        for part in parts
    ]


def grouped(ids: Sequence[str]) -> Groups:
    """The different ids in order, and the rows of each."""
    known = ordered(set(ids))
    position = {client: number for number, client in enumerate(known)}
    owner = np.fromiter((position[client] for client in ids), np.int64, len(ids))
    rows = np.argsort(owner, kind="stable")
    return known, np.split(rows, np.cumsum(np.bincount(owner, minlength=len(known)))[:-1])


def ordered(ids: Iterable[str]) -> list[str]:
    """Ids by number if all of them are whole numbers, else as text."""
    ids = list(ids)
    whole = all(client.isascii() and client.removeprefix("-").isdecimal() for client in ids)
    return sorted(ids, key=(lambda client: (int(client), client)) if whole else None)


def ids_of(cells: Iterable[Any], place: Callable[[int], str]) -> list[str]:
    """The client of every row; whole numbers are written out."""
    found = []
    for row, cell in enumerate(cells):
        value = cell.item() if isinstance(cell, np.generic) else cell
        value = value.decode(errors="replace") if isinstance(value, bytes) else value
        if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
            told = f"{value!r:.40} ({type(value).__name__})"
            raise DataError(f"{place(row)} holds {told}; clients are told apart by text or whole numbers")
        found.append(str(value))
    return found


def _field(table: Table, rule: Rules, field: str, columns: Choice) -> np.ndarray:
    style = Style(rule.dtypes.get(field), rule.pad.get(field), f"pad={{{field!r}: fm.data.Pad(length)}}")
    for column in [columns] if isinstance(columns, str) else columns:
        if column not in table.columns:
            raise DataError(f"{table.name}: column {column!r} is missing; it has {_listed(table.columns)}")
    if isinstance(columns, str):
        if field == "y" and rule.classes is not None:
            return _numbers(table, columns, rule.classes)
        return array_of(table.cells(columns), table.place(columns), style)
    each = {column: array_of(table.cells(column), table.place(column), style) for column in columns}
    for column, values in each.items():
        if values.ndim != 1 or values.dtype == object:
            found = "text" if values.dtype == object else f"rows of shape {values.shape[1:]}"
            told = f"column {column!r} holds {found}; columns that are joined to field {field!r} hold single numbers"
            raise DataError(f"{table.name}: {told}")
    return np.stack([part[field] for part in alike([{field: v} for v in each.values()], rule.dtypes)], axis=1)


def _numbers(table: Table, column: str, classes: Sequence[str]) -> np.ndarray:
    """The number of every label."""
    known = {name: number for number, name in enumerate(classes)}
    found, place = np.empty(table.rows, np.int32), table.place(column)
    for row, value in enumerate(table.cells(column)):
        if value not in known:
            raise DataError(f"{place(row)} holds {value!r:.40}; accepted are {_listed(list(known))}")
        found[row] = known[value]
    return found


def _listed(names: Sequence[str], most: int = 20) -> str:
    told = ", ".join(map(repr, names[:most]))
    return told if len(names) <= most else f"{told} and {len(names) - most} more"
