"""A file of equal slots, each with the arrays of one value: what clients of SCAFFOLD and FedDyn keep.

Several processes may use one file at the same time, on one machine or through a shared disk, as long as each of them
writes to slots of its own. Which slot belongs to whom is not in the file. Every read and write opens the file anew, so
that a network file system shows what others have written before.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from fedmime.errors import CheckpointError

_SUM = 4  # bytes of a checksum


class SlotFile:
    """Values in a file. Each slot ends with a CRC-32 of its value, so that damage is detected.

    Args:
        path: the file, which is created when the first value is written and grows with the slots that are used.
        blank: the value of a client that was never seen; all others have its structure, shapes and types.
    """

    def __init__(self, path: Path, blank: Any) -> None:
        self.path, self.blank = path, blank
        leaves, self._tree = jax.tree.flatten(blank)
        self._like = [np.asarray(leaf) for leaf in leaves]
        self._bytes = sum(like.nbytes for like in self._like) + _SUM  # of a slot

    def __len__(self) -> int:
        """The number of whole slots."""
        return self.path.stat().st_size // self._bytes if self.path.exists() else 0

    def read(self, clients: Sequence[int], slots: Mapping[int, int]) -> list[Any]:
        """The values of clients, in order, whose slots are given by client; a client without a slot has `blank`.

        Raises:
            CheckpointError: a value is damaged; the message names the client.
        """
        if not any(client in slots for client in clients):
            return [self.blank] * len(clients)
        with self.path.open("rb") as file:
            return [self._unpacked(file, slots[c], c) if c in slots else self.blank for c in clients]

    def write(self, values: Mapping[int, Any], durable: bool = False) -> None:
        """Write values by slot. `durable` waits until they are on disk, or on that of a file server."""
        if not values:
            return
        with open(self.path, "r+b", opener=_created) as file:
            for slot, value in values.items():
                file.seek(slot * self._bytes)
                file.write(self._packed(value))
            if durable:
                file.flush()
                os.fsync(file.fileno())

    def _packed(self, value: Any) -> bytes:
        """The bytes of a slot: the leaves one after another, then their checksum."""
        pairs = zip(jax.tree.leaves(value), self._like, strict=True)
        content = b"".join(np.ascontiguousarray(leaf, like.dtype).tobytes() for leaf, like in pairs)
        return content + _sum(content)

    def _unpacked(self, file: BinaryIO, slot: int, client: int) -> Any:
        """The value of a client in a slot."""
        file.seek(slot * self._bytes)
        record = file.read(self._bytes)
        content = record[:-_SUM]
        if len(record) != self._bytes or record[-_SUM:] != _sum(content):
            what = f"what the client at position {client} kept is damaged"
            raise CheckpointError(f"client memory {self.path.name}: {what}; start afresh")
        leaves, start = [], 0
        for like in self._like:
            leaves.append(np.frombuffer(content, like.dtype, like.size, start).reshape(like.shape).copy())
            start += like.nbytes
        return jax.tree.unflatten(self._tree, leaves)


def _sum(content: bytes) -> bytes:
    """The CRC-32 that ends a slot."""
    return zlib.crc32(content).to_bytes(_SUM, "little")


def _created(path: str, flags: int) -> int:
    """An opener for `open` that creates the file if it is not there, and never truncates it."""
    return os.open(path, flags | os.O_CREAT, 0o644)
