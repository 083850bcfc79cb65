"""Lies: what a node with a valid key may send instead of its reply, and how the server calls it in its history."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmime.deploy.flower import records
from fedmime.deploy.protocol import Frame, pack, unpack

_MOST = 1 << 30
_START = struct.Struct("<4sHI")  # see `fedmime.deploy.protocol`


class _Canary:
    """An object whose unpickling writes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._path}",)


def _loose(frame: Frame) -> bytes:
    """The bytes of a frame with whatever Python writes as JSON, such as NaN."""
    text = json.dumps({"kind": frame.kind, **frame.fields}).encode()
    return _START.pack(b"FMIM", 1, len(text)) + text + frame.payload


def _field(name: str, value: Any) -> Callable[[Frame], bytes]:
    return lambda frame: _loose(frame._replace(fields={**frame.fields, name: value}))


def _filled(value: float) -> Callable[[Frame], bytes]:
    """Every number of the payload is this one."""
    return lambda frame: pack(frame._replace(payload=np.full(len(frame.payload) // 4, value, "<f4").tobytes()))


def _payload(change: Callable[[bytes], bytes]) -> Callable[[Frame], bytes]:
    return lambda frame: pack(frame._replace(payload=change(frame.payload)))


_BIAS, _NUMBER = 10 * 4, 4  # bytes of the last array of the task's model, and of one number

FRAMES: Mapping[str, tuple[Callable[[Frame], bytes], str]] = {
    "a leaf of shape (1,)": (_payload(lambda data: data[: _NUMBER - _BIAS]), "shape"),
    "a missing leaf": (_payload(lambda data: data[:-_BIAS]), "shape"),
    "an extra leaf": (_payload(lambda data: data + data[-_BIAS:]), "size"),
    "no arrays": (_payload(lambda data: b""), "shape"),
    "float64": (_payload(lambda data: np.frombuffer(data, "<f4").astype("<f8").tobytes()), "size"),
    "NaN": (_filled(np.nan), "not_finite"),
    "infinity": (_filled(np.inf), "not_finite"),
    "1e30": (_filled(1e30), "norm"),
    "a NaN of a loss": (_field("loss", float("nan")), "structure"),
    "a loss of 1.7e308": (_field("loss", 1.7e308), "not_finite"),
    "a drift of -1e39": (_field("drift", -1e39), "not_finite"),
    "weight -5": (_field("examples", -5), "structure"),
    "weight 0": (_field("examples", 0), "structure"),
    "weight NaN": (_field("examples", float("nan")), "structure"),
    "weight 1e12": (_field("examples", 10**12), "structure"),
    "weight 1e6": (_field("examples", 10**6), "weight"),
    "half a frame": (lambda frame: pack(frame)[:40], "structure"),
    "garbage": (lambda frame: os.urandom(len(frame.payload)), "structure"),
    "nothing": (lambda frame: b"", "structure"),
    "deep JSON": (lambda frame: _START.pack(b"FMIM", 1, 60_000) + b"[" * 60_000, "structure"),
    "half a megabyte": (_payload(lambda data: data * (500_000 // len(data))), "size"),
}
"""Lies that change a frame, by name, with the reason for which they are refused."""

OTHERS = {"replayed": "round", "pickled": "structure", "a pickled payload": "shape", "bomb": "failed"}
"""The lies that need something else."""


class Liar:
    """Turns sound replies into lies.

    Args:
        canary: the file that unpickling a lie would write.
    """

    def __init__(self, canary: Path) -> None:
        self._canary, self._first, self._armed = canary, b"", False
        self._wrapped, records.wrapped = records.wrapped, self._sent  # by which this process sends its replies

    def told(self, lie: str, reply: bytes) -> bytes:
        """What is sent instead of a reply."""
        self._first = self._first or reply  # of the first round, replayed later
        frame = unpack(reply, _MOST)
        if lie == "replayed":
            return self._first
        if lie == "pickled":
            return pickle.dumps(_Canary(self._canary))
        if lie == "a pickled payload":
            return pack(frame._replace(payload=pickle.dumps(_Canary(self._canary))))
        if lie == "bomb":
            self._armed = True
            return reply
        return FRAMES[lie][0](frame)

    def _sent(self, data: bytes) -> Any:
        """The content of a message to the server."""
        armed, self._armed = self._armed, False
        return _bomb() if armed else self._wrapped(data)


def _bomb() -> Any:
    """Content with an array that inflates to 50 gigabytes from less than a megabyte."""
    from flwr.app import Array, ArrayRecord, RecordDict

    class Bomb(Array):
        def deflate(self) -> bytes:
            told = {"dtype": "uint8", "shape": [1], "stype": "", "arraychunk_ids": [0] * 100_000}
            body, (child,) = json.dumps(told).encode(), self.children
            return f"Array {child} {len(body)}".encode() + b"\0" + body

    record = ArrayRecord({"a": Array("uint8", (1 << 19,), "numpy.ndarray", b"\0" * (1 << 19))})
    record["a"].__class__ = Bomb  # the record would make an ordinary array of one
    return RecordDict({"000000": record})
