"""Is a store still what was written? Names and sizes at once, contents whenever a file was touched since the last look.

Opening a store and `fedmime data verify` both call `check`, so what one accepts the other does.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedmime.data.maps import Maps
from fedmime.data.schema import fields_of, read_schema
from fedmime.data.writer import INDEX, SCHEMA, field_files, starts_of
from fedmime.errors import DataError
from fedmime.files import sha256_of

STAMP = "stamp.json"  # what the files looked like when their contents were last known to be right
_BLOCK = 1 << 20  # offsets looked at together


def check(directory: Path, verify: bool = False) -> dict[str, Any]:
    """The schema of a store whose files are all there and unchanged, or one line saying which is not."""
    schema = read_schema(directory)
    where = f"store {str(directory)!r}"
    for name, told in schema["files"].items():
        file = directory / name
        if file.is_symlink() or not file.is_file():
            raise DataError(f"{where}: {name!r} is missing or not a plain file")
        if (size := file.stat().st_size) != told["bytes"]:
            raise DataError(f"{where}: {name!r} has {size} bytes, expected {told['bytes']}")
    for name in schema["children"]:
        if (directory / name).is_symlink() or not (directory / name).is_dir():
            raise DataError(f"{where}: {name!r} is missing or not a plain directory")
    known = {SCHEMA, STAMP, *schema["files"], *schema["children"]}
    if foreign := [file.name for file in directory.iterdir() if file.name not in known and file.name[0] != "."]:
        raise DataError(f"{where}: {min(foreign)!r} is in no list of {SCHEMA}; a store holds nothing else")
    if verify or _read_stamp(directory) != _stamp(directory, schema):
        for name, told in schema["files"].items():
            if (found := sha256_of(directory / name)) != told["sha256"]:
                raise DataError(f"{where}: {name!r}: sha256 differs: found {found}, expected {told['sha256']:.80}")
        _check_contents(directory, schema)
        remember(directory)
    return schema


def remember(directory: Path) -> None:
    """Note the files' sizes and times, so that the next opening need not look into them."""
    schema = read_schema(directory)
    for child in schema["children"]:
        remember(directory / child)
    with contextlib.suppress(OSError):  # a read-only store is looked into at each opening
        (directory / STAMP).unlink(missing_ok=True)  # never written through a link
        with (directory / STAMP).open("x", encoding="utf-8") as file:
            json.dump(_stamp(directory, schema), file)


def _check_contents(directory: Path, schema: dict[str, Any]) -> None:
    """Raise unless offsets divide their files, and ids are text, unique, and in the order that the index says."""
    maps, fields = Maps(), fields_of(schema)
    clients, examples = schema["clients"], schema["examples"]
    _divides(maps.array(directory / "starts.bin", INDEX, (clients + 1,)), examples, directory / "starts.bin")
    for file, field in zip(field_files(fields), fields.values(), strict=True):
        if field.ragged:
            values = schema["files"][file]["bytes"] // (1 if field.text else field.dtype.itemsize)
            starts = directory / starts_of(file)
            _divides(maps.array(starts, INDEX, (examples + 1,)), values, starts)
    begins = maps.array(directory / "ids.starts.bin", INDEX, (clients + 1,))
    _divides(begins, schema["files"]["ids.bin"]["bytes"], directory / "ids.starts.bin")
    text = (directory / "ids.bin").read_bytes()
    ids = [text[start:stop] for start, stop in itertools.pairwise(begins.tolist())]
    order = maps.array(directory / "ids.order.bin", INDEX, (clients,))
    if not np.array_equal(np.sort(order), np.arange(clients)):
        raise DataError(f"store file {str(directory / 'ids.order.bin')!r} does not name each of {clients} clients once")
    for before, after in itertools.pairwise(order.tolist()):
        if ids[before] >= ids[after]:
            told = "appears twice; ids must be unique" if ids[before] == ids[after] else "is not in sorted order"
            raise DataError(f"store {str(directory)!r}: client id {ids[after].decode(errors='replace')!r} {told}")
    for client in ids:
        try:
            client.decode()
        except UnicodeDecodeError:
            raise DataError(f"store {str(directory)!r}: client id {client!r:.80} is no text in UTF-8") from None


def _divides(starts: np.ndarray, total: int, file: Path) -> None:
    """Raise unless offsets begin with 0, never fall, and end with the total."""
    rising = all((np.diff(starts[at : at + _BLOCK + 1]) >= 0).all() for at in range(0, len(starts), _BLOCK))
    if starts[0] != 0 or starts[-1] != total or not rising:
        raise DataError(f"store file {str(file)!r} must rise from 0 to {total}, which it does not")


def _stamp(directory: Path, schema: dict[str, Any]) -> dict[str, Any]:
    """What changes when a file of the store is touched."""
    states = {name: (directory / name).stat() for name in schema["files"]}
    times = {name: [state.st_size, state.st_mtime_ns, state.st_ctime_ns] for name, state in states.items()}
    return {"seal": schema["seal"], "files": times}


def _read_stamp(directory: Path) -> Any:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return json.loads((directory / STAMP).read_text(encoding="utf-8"))
    return None
