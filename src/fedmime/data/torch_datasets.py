"""Populations from map-style data sets of PyTorch, which is not imported: items bring all that is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmime.data.padding import Pad
from fedmime.data.population import Population
from fedmime.data.tables import Groups, Table, grouped, ids_of, ordered, population_of, rules
from fedmime.errors import ConfigError, DataError

_READER = "from_torch"


def from_torch(
    dataset: Any,
    by: str | Sequence[Any] | None = None,
    *,
    clients: Mapping[str, Sequence[int]] | None = None,
    names: Sequence[str] = ("x", "y"),
    test: Any = None,
    dtypes: Mapping[str, Any] | None = None,
    pad: Mapping[str, Pad] | None = None,
    name: str = "torch",
) -> Population:
    """A population from a map-style data set: anything with a length whose items are tuples or dicts.

    Items are read once, with the transforms of the data set. Models here expect images as [height, width, channels];
    what `ToTensor` gives has channels first.

    Args:
        by: whose an item is: one id for each item, or for dicts the key that holds it; or
        clients: the positions of each client's items, such as the `indices` of a `Subset`, by id.
        names: the fields of items that are tuples.
        test: a second data set. If `by` is a key of its items it gives test clients, otherwise a pooled test set.
        dtypes: the dtype of a field, where int32 for whole numbers and float32 for others will not do.
        pad: how sequences of differing lengths become rows of one length, by field.
    """
    if (by is None) == (clients is None):
        raise ConfigError(f"{_READER}: give by or clients, and not both")
    table = _table(dataset, names, "dataset")
    groups = None
    if clients is not None:
        groups = _groups(clients, table.rows)
    elif not isinstance(by, str):
        groups = _grouped(by, table.rows)
    chosen = rules(_READER, table, by if isinstance(by, str) else None, None, None, None, dtypes, pad, None)
    return population_of(table, chosen, None if test is None else _table(test, names, "test"), name, groups)


def _table(dataset: Any, names: Sequence[str], argument: str) -> Table:
    """All items of a data set, column by column."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        told = f"{argument} must be a map-style data set with a length"
        raise ConfigError(f"{_READER}: {told}, got {type(dataset).__name__}")
    where = _READER if argument == "dataset" else f"{_READER}: test"
    items = [_named(dataset[row], names, f"{where}: item {row}") for row in range(len(dataset))]
    columns = list(items[0]) if items else []
    for row, item in enumerate(items):
        if item.keys() != items[0].keys():
            raise DataError(f"{where}: item {row} has fields {list(item)}; the first one has {columns}")
    return Table(where, columns, len(items), lambda column: [item[column] for item in items], "item {}".format)


def _named(item: Any, names: Sequence[str], where: str) -> Mapping[str, Any]:
    if isinstance(item, Mapping):
        return item
    if not isinstance(item, tuple | list) or len(item) != len(names):
        found = f"{len(item)} entries" if isinstance(item, tuple | list) else type(item).__name__
        raise DataError(f"{where} is {found}; accepted is a dict, or one entry for each of names={tuple(names)!r}")
    return dict(zip(names, item, strict=True))


def _grouped(by: Any, rows: int) -> Groups:
    """Clients out of one id for each item."""
    owners = by.tolist() if hasattr(by, "tolist") else list(by)
    if len(owners) != rows:
        raise DataError(f"{_READER}: by has {len(owners)} ids for {rows} items; each item needs one")
    return grouped(ids_of(owners, lambda row: f"{_READER}: by, item {row}"))


def _groups(clients: Mapping[str, Sequence[int]], rows: int) -> Groups:
    """Clients out of the positions of their items."""
    if odd := [client for client in clients if not isinstance(client, str)]:
        raise DataError(f"{_READER}: client id {odd[0]!r} is {type(odd[0]).__name__}; ids are str")
    parts = {client: np.asarray(clients[client]) for client in ordered(clients)}
    for client, part in parts.items():
        whole = part.ndim == 1 and (not part.size or part.dtype.kind in "iu")
        outside = part[(part < 0) | (part >= rows)] if whole else part
        if not whole or outside.size:
            told = f"client {client!r} has {outside.ravel().tolist()[0] if outside.size else part.tolist()!r}"
            raise DataError(f"{_READER}: {told}; accepted are positions from 0 to {rows - 1}")
    if not parts:
        raise DataError(f"{_READER}: no clients given; at least one is needed")
    return list(parts), [part.astype(np.int64) for part in parts.values()]
