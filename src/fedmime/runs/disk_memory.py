"""A client memory on disk: what clients of SCAFFOLD and FedDyn keep, in a file of the run directory."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from fedmime.errors import CheckpointError

_FIRST_SLOTS, _SUM = 64, 4  # slots of a new file; bytes of a checksum


class DiskMemory:
    """A client memory in a memory-mapped file of equal slots, one for each client seen.

    The file alone does not say which slot belongs to which client: the index is part of a checkpoint. A slot that a
    commit refers to is not overwritten before that commit is released; a new value goes to a free slot instead. So a
    process that is killed at any time leaves a file from which every kept checkpoint can be resumed. Each slot ends
    with a CRC-32 of its value, so that damage is detected.
    """

    def __init__(
        self,
        blank: Any,
        path: str | os.PathLike[str],
        index: Mapping[int, int] | None = None,
        held: Mapping[int, Mapping[int, int]] | None = None,
    ) -> None:
        """Open the file at `path`, or create it.

        Args:
            blank: the value of a client that was never seen; it determines the layout of a slot.
            path: the file, which grows as clients are seen.
            index: slots by client, as returned by `commit`, to continue from that moment; by default no client was
                seen.
            held: the indexes of all commits that must stay readable, by name; by default only `index`.

        Raises:
            CheckpointError: the file has fewer slots than the indexes refer to.
        """
        leaves, self._tree = jax.tree.flatten(blank)
        self._blank = [np.asarray(leaf) for leaf in leaves]
        self._unseen = self._pack(blank)
        self._path = Path(path)
        self._slots = dict(index or {})
        held = {0: self._slots} if held is None else held
        self._held = {name: frozenset(slots.values()) for name, slots in held.items()}
        self._used = max((slot for slots in self._held.values() for slot in slots), default=-1) + 1
        self._find_free()
        holds = self._path.stat().st_size // self._unseen.size if self._path.exists() else 0
        if holds < self._used:
            raise CheckpointError(
                f"client memory {self._path.name}: holds {holds} clients, its index names {self._used}"
            )
        self._table = self._open(max(holds, _FIRST_SLOTS))

    def __len__(self) -> int:
        return len(self._slots)

    def read(self, clients: Sequence[int]) -> list[Any]:
        """See `ClientMemory.read` in the engine; raises `CheckpointError` if one of these values is damaged."""
        return [self._unpack(self._sound(c) if c in self._slots else self._unseen) for c in clients]

    def write(self, clients: Sequence[int], values: Sequence[Any]) -> Self:
        """Write values to the file and return this memory. Slots of commits are not touched.

        See `ClientMemory.write` in the engine.
        """
        for client, value in zip(clients, values, strict=True):
            slot = self._slots.get(client)
            if slot is None or slot in self._locked:
                slot = self._slots[client] = self._free.pop() if self._free else self._next()
            self._table[slot] = self._pack(value)
        return self

    def commit(self, name: int = 0) -> dict[int, int]:
        """Make the present values permanent, under a name that replaces an earlier commit of the same name.

        Returns:
            The index, slots by client, from which a new `DiskMemory` finds these values.
        """
        self._table.flush()
        self._held[name] = frozenset(self._slots.values())
        self._find_free()
        return dict(self._slots)

    def release(self, name: int) -> None:
        """Give up a commit, so that slots that only it refers to can be reused."""
        self._held.pop(name, None)
        self._find_free()

    def _find_free(self) -> None:
        """Compute which slots commits protect, and which slots neither a commit nor the present state uses."""
        self._locked = frozenset().union(*self._held.values())
        used = self._locked.union(self._slots.values())
        self._free = [slot for slot in reversed(range(self._used)) if slot not in used]

    def _next(self) -> int:
        """A new slot at the end of the file, which doubles in size when it is full."""
        if self._used == len(self._table):
            self._table.flush()
            self._table = self._open(2 * len(self._table))
        self._reserve(self._used)
        self._used += 1
        return self._used - 1

    def _reserve(self, slot: int) -> None:
        """Allocate the disk blocks of a slot.

        The file is sparse. Without an allocation, a full disk would show up as a bus error when a mapped page is
        written, which ends the process; here it is an `OSError`.
        """
        if hasattr(os, "posix_fallocate"):
            with self._path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), slot * self._unseen.size, self._unseen.size)

    def _open(self, slots: int) -> np.memmap:
        """Extend the file to so many slots and map it [slots, bytes of a slot]."""
        with self._path.open("ab") as file:
            file.truncate(slots * self._unseen.size)
        return np.memmap(self._path, np.uint8, "r+", shape=(slots, self._unseen.size))

    def _sound(self, client: int) -> np.ndarray:
        """The slot of a client, after its checksum was verified."""
        record = self._table[self._slots[client]]
        if not np.array_equal(record[-_SUM:], _sum(record[:-_SUM])):
            raise CheckpointError(
                f"client memory {self._path.name}: what the client at position {client} kept is damaged; start afresh"
            )
        return record

    def _pack(self, value: Any) -> np.ndarray:
        """A value as the bytes of a slot: the leaves one after another, then their checksum."""
        pairs = zip(jax.tree.leaves(value), self._blank, strict=True)
        parts = [np.ascontiguousarray(leaf, like.dtype).reshape(-1).view(np.uint8) for leaf, like in pairs]
        packed = np.concatenate(parts)
        return np.concatenate([packed, _sum(packed)])

    def _unpack(self, record: np.ndarray) -> Any:
        """The value in the bytes of a slot, copied out of the mapped file."""
        leaves, start = [], 0
        for like in self._blank:
            leaves.append(np.array(record[start : start + like.nbytes]).view(like.dtype).reshape(like.shape))
            start += like.nbytes
        return jax.tree.unflatten(self._tree, leaves)


def _sum(values: np.ndarray) -> np.ndarray:
    """The CRC-32 of bytes, as the `_SUM` bytes that end a slot."""
    return np.frombuffer(zlib.crc32(np.ascontiguousarray(values).data).to_bytes(_SUM, "little"), np.uint8)
