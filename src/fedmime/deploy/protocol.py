"""The frame of every message between the server and a node: a versioned JSON header and one block of bytes.

Nothing that arrives can choose a type, a shape or a piece of code: the header holds names and numbers only, and the
block is opened by a receiver that already knows what has to be in it (`fedmime.aggregation.wire.unpack`). Every length
is compared with a bound before anything is decoded.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

VERSION = 1
MOST_HEADER_BYTES = 1 << 16
_MAGIC = b"FMIM"
_START = struct.Struct("<4sHI")  # magic, version, bytes of the header


class FrameError(ValueError):
    """What arrived is no frame of this protocol, or a larger one than the receiver accepts."""


class TooLarge(FrameError):
    """What arrived is longer than the receiver accepts. It was not decoded."""


class Frame(NamedTuple):
    """One message."""

    kind: str
    """What it is: a request's or a reply's name."""
    fields: Mapping[str, Any]
    """Names and numbers: what JSON can hold, without NaN and infinities."""
    payload: bytes = b""
    """Arrays, packed."""


class Node(Protocol):
    """The client's half of a deployment, whatever it is written in."""

    def answer(self, request: bytes) -> bytes:
        """The reply to a request. It never raises for what a server sent: an error is a reply, too."""
        ...


def pack(frame: Frame) -> bytes:
    """The bytes of a frame."""
    text = json.dumps({"kind": frame.kind, **frame.fields}, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MOST_HEADER_BYTES:
        raise FrameError(f"the header has {len(text)} bytes, accepted are at most {MOST_HEADER_BYTES}")
    return _START.pack(_MAGIC, VERSION, len(text)) + text + frame.payload


def unpack(data: bytes, most_payload: int) -> Frame:
    """The frame of some bytes.

    Args:
        data: what arrived.
        most_payload: the largest number of bytes that the payload may have.

    Raises:
        FrameError: `data` is anything but a frame that `pack` could have made within these bounds.
    """
    if len(data) < _START.size:
        raise FrameError(f"a frame has at least {_START.size} bytes, got {len(data)}")
    magic, version, length = _START.unpack_from(data)
    if magic != _MAGIC:
        raise FrameError("it does not begin as a frame of fedmime does")
    if version != VERSION:
        raise FrameError(f"it has version {version} of the protocol, accepted is {VERSION}")
    end = _START.size + length
    if length > MOST_HEADER_BYTES or end > len(data):
        raise FrameError(f"its header claims {length} bytes of {len(data)}")
    if len(data) - end > most_payload:
        raise TooLarge(f"its payload has {len(data) - end} bytes, accepted are at most {most_payload}")
    fields = _fields(data[_START.size : end])
    return Frame(fields.pop("kind"), fields, data[end:])


def _fields(text: bytes) -> dict[str, Any]:
    """The header's fields, `kind` among them."""
    try:
        fields = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"its header is no JSON: {error}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
        raise FrameError("its header names no kind")
    return fields


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")
