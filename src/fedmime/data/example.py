"""Decode `tf.train.Example` without TensorFlow: the few protocol-buffer rules that it needs.

`Example { Features features = 1 }`, `Features { map<string, Feature> feature = 1 }`, and a `Feature` is one of
`BytesList = 1`, `FloatList = 2`, `Int64List = 3`, each with `repeated value = 1`, packed or not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from fedmime.errors import DataError

Value = list[bytes] | np.ndarray
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def decode(data: bytes) -> dict[str, Value]:
    """The features of one serialized example: lists of bytes, float32 arrays and int64 arrays."""
    features: dict[str, Value] = {}
    try:
        for message in _messages(data, 1):
            for entry in _messages(message, 1):
                name, feature = _entry(entry)
                features[name] = _feature(feature)
    except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"not a tf.train.Example: {type(error).__name__} in {len(data)} bytes") from None
    return features


def _entry(data: bytes) -> tuple[str, bytes]:
    """Key and value of a map entry; either may be left out, meaning empty."""
    name, value = "", b""
    for number, kind, content in _fields(data):
        if kind == _BYTES and isinstance(content, bytes):
            name, value = (content.decode(), value) if number == 1 else (name, content if number == 2 else value)
    return name, value


def _feature(data: bytes) -> Value:
    result: Value = []
    for number, kind, content in _fields(data):
        if kind != _BYTES or not isinstance(content, bytes):
            continue
        if number == 1:
            result = list(_messages(content, 1))
        elif number == 2:
            result = _floats(content)
        elif number == 3:
            result = _integers(content)
    return result


def _floats(data: bytes) -> np.ndarray:
    pieces = [
        np.frombuffer(content, "<f4") if isinstance(content, bytes) else np.array([content], "<u4").view("<f4")
        for number, kind, content in _fields(data)
        if number == 1 and kind in (_BYTES, _FIXED32)
    ]
    return np.concatenate(pieces) if pieces else np.empty(0, np.float32)


def _integers(data: bytes) -> np.ndarray:
    pieces = [
        _varints(content) if isinstance(content, bytes) else np.array([content], np.uint64)
        for number, kind, content in _fields(data)
        if number == 1 and kind in (_BYTES, _VARINT)
    ]
    return np.concatenate(pieces).view(np.int64) if pieces else np.empty(0, np.int64)


def _varints(data: bytes) -> np.ndarray:
    """All variable-length integers of a packed list, at once: seven bits a byte, the last byte without its top bit."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if len(raw) and (not len(ends) or ends[-1] != len(raw) - 1):
        raise DataError("not a tf.train.Example: a packed integer is cut off")
    begins = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    if (ends - begins >= 10).any():
        raise DataError("not a tf.train.Example: an integer is longer than 64 bits")
    total = np.zeros(len(ends), np.uint64)
    for place in range(int((ends - begins).max(initial=0)) + 1 if len(raw) else 0):
        at = begins + place
        inside = at <= ends
        bits = np.where(inside, raw[np.minimum(at, len(raw) - 1)] & 0x7F, 0).astype(np.uint64)
        total |= bits << np.uint64(7 * place)
    return total


def _messages(data: bytes, wanted: int) -> Iterator[bytes]:
    """The contents of the length-delimited fields of one number."""
    for number, _, content in _fields(data):
        if number == wanted and isinstance(content, bytes):
            yield content


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes | int]]:
    """Number, wire type and content of each field of a message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            content, at = _varint(data, at)
        elif kind == _BYTES:
            length, at = _varint(data, at)
            content, at = data[at : at + length], at + length
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
            content, at = struct.unpack_from("<I" if size == 4 else "<Q", data, at)[0], at + size
        else:
            raise DataError(f"not a tf.train.Example: wire type {kind}")
        if at > len(data) or number == 0:
            raise DataError(f"not a tf.train.Example: field {number} runs past the end of {len(data)} bytes")
        yield number, kind, content


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & (2**64 - 1), at
        if shift >= 70:
            raise DataError("not a tf.train.Example: an integer is longer than 64 bits")
