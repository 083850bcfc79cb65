"""A reader of W&B's offline files: records of protocol buffers in the log format of LevelDB.

W&B 0.31 has no reader in Python any more; its messages are still public in `wandb.proto`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEAD = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Any]:
    """The records of a file. A record is one piece, or several if it reaches over the end of a block."""
    from wandb.proto.wandb_internal_pb2 import Record

    content = path.read_bytes()
    assert content[:4] == b":W&B"
    at, pieces = HEAD, b""  # the file's own head is as long as a record's
    while at + HEAD <= len(content):
        left = BLOCK - at % BLOCK
        if left < HEAD:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + HEAD])
        assert kind in (FULL, FIRST, MIDDLE, LAST)
        pieces += content[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (FULL, LAST):
            yield Record.FromString(pieces)
            pieces = b""


def offline(directory: Path) -> dict[str, list[list[tuple[int, dict[str, float]]]]]:
    """For every W&B run in a directory, by its id, the segments in which it was written: steps with their numbers.

    W&B's own process writes the files, and may still be at it when `finish` has returned: `teardown` waits for its end.
    """
    import wandb

    wandb.teardown()
    found: dict[str, list[list[tuple[int, dict[str, float]]]]] = {}
    for path in sorted(directory.glob("wandb/offline-run-*/run-*.wandb")):
        segment, run = [], ""
        for record in records(path):
            if record.HasField("run"):
                run = record.run.run_id
            if record.HasField("history"):
                items = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                segment.append((items["_step"], {k: v for k, v in items.items() if not k.startswith("_")}))
        found.setdefault(run, []).append(segment)
    return found


def config(path: Path) -> dict[str, Any]:
    """The configuration that a file holds."""
    return {
        item.key: json.loads(item.value_json)
        for record in records(path)
        if record.HasField("run")
        for item in record.run.config.update
    }
