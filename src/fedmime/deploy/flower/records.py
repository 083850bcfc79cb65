"""Byte strings as the content of Flower's messages.

They travel as `ConfigRecord`s, which hold bytes as they are. Flower's arrays would do, too, but cost two more requests
a message each way, and their format lets a sender repeat one chunk any number of times: a few kilobytes that inflate
to terabytes.

A string is cut into parts, since Flower moves a record in one piece, and a piece that takes longer than its patience
is lost. The cuts are counted from the end. Requests of one round differ in their headers only, which stand at the
beginning: counted so, nodes share the other parts, and Flower stores and sends equal records to its SuperLink once.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import RecordDict

PART = 1 << 22
"""Bytes of a part."""
_BYTES = "bytes"


class RecordError(ValueError):
    """Content that no `wrapped` has made, or more of it than is accepted."""


def wrapped(data: bytes) -> RecordDict:
    """The content of a message that carries `data`."""
    from flwr.app import ConfigRecord, RecordDict

    first = len(data) % PART or min(PART, len(data))
    cuts = [0, *range(first, len(data) + 1, PART)]
    pieces = [data[start:stop] for start, stop in itertools.pairwise(cuts)]
    return RecordDict({f"{i:06d}": ConfigRecord({_BYTES: piece}) for i, piece in enumerate(pieces)})


def unwrapped(content: Any, most: int) -> bytes:
    """What a message carries; the size is compared with the bound before anything is copied.

    Raises:
        RecordError: it is not what `wrapped` makes, or has more than `most` bytes.
    """
    from flwr.app import ConfigRecord

    pieces = []
    for i, (name, record) in enumerate(content.items()):
        piece = record.get(_BYTES) if isinstance(record, ConfigRecord) and len(record) == 1 else None
        if name != f"{i:06d}" or not isinstance(piece, bytes):
            raise RecordError(f"the record {name!r:.50} is no part of a message of fedmime")
        pieces.append(piece)
    size = sum(map(len, pieces))
    if size > most:
        raise RecordError(f"a message has {size} bytes, accepted are at most {most}")
    return b"".join(pieces)
