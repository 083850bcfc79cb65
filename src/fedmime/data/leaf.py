"""Populations from the JSON files of LEAF: `users`, `num_samples` and `user_data: {user: {x, y}}`.

Reference: Caldas et al., 2018, LEAF: A Benchmark for Federated Settings, https://arxiv.org/abs/1812.01097
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmime.data.arrays import checked, dealt, same_fields
from fedmime.data.cells import Style, array_of
from fedmime.data.padding import Pad, check_pad
from fedmime.data.population import Columns, Population
from fedmime.data.tables import alike, ordered
from fedmime.errors import ConfigError, DataError

_READER = "from_leaf"
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Users = dict[str, Mapping[str, Sequence[Any]]]


def from_leaf(
    train: Paths,
    test: Paths | None = None,
    *,
    dtypes: Mapping[str, Any] | None = None,
    pad: Mapping[str, Pad] | None = None,
    name: str = "leaf",
) -> Population:
    """A population from LEAF's files: a directory with `*.json`, one file, or several.

    Args:
        test: the same for held-out data, which gives test clients.
        dtypes: the dtype of a field, where int32 for whole numbers and float32 for others will not do.
        pad: how sequences of differing lengths become rows of one length, by field.
    """
    check_pad(_READER, pad or {})
    users = [_users(_files(paths)) for paths in (train, test) if paths is not None]
    fields = list(next(iter(users[0].values())))
    for option, given in (("dtypes", dtypes), ("pad", pad)):
        if odd := (given or {}).keys() - set(fields):
            raise ConfigError(f"{_READER}: {option} names field {min(odd)!r}; accepted are {fields}")
    parts = alike([_columns(each, fields, dtypes or {}, pad or {}) for each in users], dtypes or {})
    pooled, found = checked(parts[0], name)
    test_clients = None
    if test is not None:
        held_out, kinds = checked(parts[1], f"{name}: test")
        same_fields(found, kinds, f"{name}: test")
        test_clients = dealt(name, held_out, kinds, *_dealt(users[1]))
    return dealt(name, pooled, found, *_dealt(users[0]), test_clients=test_clients)


def _files(paths: Paths) -> list[Path]:
    found = [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    files = [file for path in found for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not files:
        raise DataError(f"{_READER}: no *.json in {', '.join(repr(str(path)) for path in found) or 'no path'}")
    return files


def _users(files: Sequence[Path]) -> Users:
    """The data of all users of all files, in the order of their ids; counts that disagree are refused."""
    users: Users = {}
    for file in files:
        where = f"{_READER} {str(file)!r}"
        told = _read(file, where)
        names, sizes, data = told["users"], told["num_samples"], told["user_data"]
        if len(names) != len(sizes):
            raise DataError(f"{where}: {len(names)} users but {len(sizes)} num_samples")
        if odd := set(names) ^ set(data):
            missing = "user_data" if min(odd) in names else "users"
            raise DataError(f"{where}: user {min(odd)!r} is missing in {missing!r}")
        for user, size in zip(names, sizes, strict=True):
            if user in users:
                raise DataError(f"{where}: user {user!r} appears twice; users must be unique over all files")
            fields = data[user]
            lists = isinstance(fields, dict) and all(isinstance(cells, list) for cells in fields.values())
            if not lists or not fields:
                raise DataError(f"{where}: user {user!r} holds {fields!r:.40}; accepted are lists by field")
            expected = next(iter(users.values())) if users else fields
            if fields.keys() != expected.keys():
                raise DataError(f"{where}: user {user!r} has fields {sorted(fields)}; others have {sorted(expected)}")
            for field, cells in fields.items():
                if len(cells) != size:
                    told_size = f"num_samples says {size!r}"
                    raise DataError(f"{where}: user {user!r}, field {field!r} has {len(cells)} examples; {told_size}")
            users[user] = fields
    if not users:
        raise DataError(f"{_READER}: no users in {str(files[0])!r}; at least one is needed")
    return {user: users[user] for user in ordered(users)}


def _read(file: Path, where: str) -> dict[str, Any]:
    try:
        told = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"{where} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is no JSON: {error}") from None
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    for key, kind in kinds.items():
        if not isinstance(told, dict) or not isinstance(told.get(key), kind):
            found = told.get(key) if isinstance(told, dict) else told
            raise DataError(f"{where}: {key!r} must be a {kind.__name__}, got {found!r:.40}")
    if odd := [user for user in told["users"] if not isinstance(user, str)]:
        raise DataError(f"{where}: user {odd[0]!r} is {type(odd[0]).__name__}; accepted is text")
    return told


def _columns(users: Users, fields: Sequence[str], dtypes: Mapping[str, Any], pad: Mapping[str, Pad]) -> Columns:
    """The examples of all users one after another."""
    owners = [(user, number) for user, columns in users.items() for number in range(len(columns[fields[0]]))]

    def place(row: int) -> str:
        user, number = owners[row]
        return f"{_READER}: user {user!r}, field {field!r}, example {number}"

    found = {}
    for field in fields:
        style = Style(dtypes.get(field), pad.get(field), f"pad={{{field!r}: fm.data.Pad(length)}}")
        cells = [cell for columns in users.values() for cell in columns[field]]
        found[field] = array_of(cells, place, style)
    return found


def _dealt(users: Users) -> tuple[list[np.ndarray], list[str]]:
    """Which examples are each user's, and their ids."""
    sizes = [len(next(iter(columns.values()))) for columns in users.values()]
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]), list(users)
