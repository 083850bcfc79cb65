"""Is a store still what was written? Sizes at once, sha256 whenever a file was touched since the last look."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from fedmime.data.writer import FORMAT, SCHEMA, VERSION, seal
from fedmime.errors import DataError
from fedmime.files import sha256_of

STAMP = "stamp.json"  # what the files looked like when their sha256 was last known to be right


def check(directory: Path, verify: bool = False) -> dict[str, Any]:
    """The schema of a store whose files are all there and unchanged, or one line saying which is not."""
    schema = read_schema(directory)
    where = f"store {str(directory)!r}"
    for name, told in schema["files"].items():
        file = directory / name
        if file.is_symlink() or not file.is_file() or "/" in name:
            raise DataError(f"{where}: {name!r} is missing or not a plain file")
        if (size := file.stat().st_size) != told["bytes"]:
            raise DataError(f"{where}: {name!r} has {size} bytes, expected {told['bytes']}")
    if verify or _read_stamp(directory) != _stamp(directory, schema):
        for name, told in schema["files"].items():
            if (found := sha256_of(directory / name)) != told["sha256"]:
                raise DataError(f"{where}: {name!r}: sha256 differs: found {found}, expected {told['sha256']}")
        remember(directory)
    return schema


def remember(directory: Path) -> None:
    """Note the files' sizes and times, so that the next opening need not hash them."""
    schema = read_schema(directory)
    for child in schema["children"]:
        remember(directory / child)
    with contextlib.suppress(OSError):  # a read-only store is hashed at each opening
        (directory / STAMP).write_text(json.dumps(_stamp(directory, schema)), encoding="utf-8")


def read_schema(directory: Path) -> dict[str, Any]:
    """The schema of a store, if it is whole and of a version known here."""
    try:
        schema = json.loads((directory / SCHEMA).read_text(encoding="utf-8"))
        told, version, _ = schema["seal"], schema["version"], schema["children"]
    except FileNotFoundError:
        raise DataError(f"{str(directory)!r} is not a store: it has no {SCHEMA}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"store {str(directory)!r}: {SCHEMA} cannot be read: {type(error).__name__}") from None
    if schema.get("format") != FORMAT or version != VERSION:
        raise DataError(
            f"store {str(directory)!r}: version {version!r} of {schema.get('format')!r}; accepted is {VERSION}"
        )
    if told != seal(schema):
        raise DataError(f"store {str(directory)!r}: {SCHEMA}: sha256 differs: found {seal(schema)}, expected {told}")
    return schema


def _stamp(directory: Path, schema: dict[str, Any]) -> dict[str, Any]:
    """What changes when a file of the store is touched."""
    states = {name: (directory / name).stat() for name in schema["files"]}
    times = {name: [state.st_size, state.st_mtime_ns, state.st_ctime_ns] for name, state in states.items()}
    return {"seal": schema["seal"], "files": times}


def _read_stamp(directory: Path) -> Any:
    with contextlib.suppress(OSError, ValueError):
        return json.loads((directory / STAMP).read_text(encoding="utf-8"))
    return None
