"""What clients keep between the rounds they are seen in: one interface, in memory or on disk.

Only clients that were seen take room. `write` returns the memory to go on with: `RamMemory` leaves the old one as it
was, so a state can be used twice; `DiskMemory` changes its file, but never what was last committed.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import jax
import numpy as np

from fedmime.errors import CheckpointError

_FIRST_SLOTS, _SUM = 64, 4


class ClientMemory(Protocol):
    """Where stateful algorithms (SCAFFOLD, FedDyn) find what a client kept."""

    def read(self, clients: Sequence[int]) -> list[Any]:
        """What each client has kept, `Algorithm.remember` for those never seen."""
        ...

    def write(self, clients: Sequence[int], values: Sequence[Any]) -> Self:
        """The memory after each of these clients kept a new value."""
        ...

    def __len__(self) -> int:
        """How many clients have been seen."""
        ...


@jax.tree_util.register_pytree_node_class
class RamMemory:
    """Kept values in a dictionary."""

    def __init__(self, blank: Any, kept: Mapping[int, Any] | None = None) -> None:
        self._blank = blank
        self._kept = dict(kept or {})

    def __len__(self) -> int:
        return len(self._kept)

    def read(self, clients: Sequence[int]) -> list[Any]:
        """See `ClientMemory`."""
        return [self._kept.get(client, self._blank) for client in clients]

    def write(self, clients: Sequence[int], values: Sequence[Any]) -> Self:
        """See `ClientMemory`."""
        return type(self)(self._blank, {**self._kept, **dict(zip(clients, values, strict=True))})

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        return (self._blank, self._kept), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any, Any]) -> Self:
        return cls(*children)


class DiskMemory:
    """Kept values in a memory-mapped table of equal slots, one for each client seen.

    What was committed is not written over before it is released: a new value goes to a free slot instead. Each slot
    ends with a checksum of its value, so that a damaged one is not taken for what a client kept.
    """

    def __init__(
        self,
        blank: Any,
        path: str | os.PathLike[str],
        index: Mapping[int, int] | None = None,
        held: Mapping[int, Mapping[int, int]] | None = None,
    ) -> None:
        """Open or make the file at `path`; `index` is what `commit` returned, to go on from that moment.

        `held` are the indexes of other commits that must stay readable, by name.
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
        """See `ClientMemory`."""
        return [self._unpack(self._sound(c) if c in self._slots else self._unseen) for c in clients]

    def write(self, clients: Sequence[int], values: Sequence[Any]) -> Self:
        """See `ClientMemory`."""
        for client, value in zip(clients, values, strict=True):
            slot = self._slots.get(client)
            if slot is None or slot in self._locked:
                slot = self._slots[client] = self._free.pop() if self._free else self._next()
            self._table[slot] = self._pack(value)
        return self

    def commit(self, name: int = 0) -> dict[int, int]:
        """Flush the file and return the index that finds everything again; it replaces a commit of the same name."""
        self._table.flush()
        self._held[name] = frozenset(self._slots.values())
        self._find_free()
        return dict(self._slots)

    def release(self, name: int) -> None:
        """Let the slots of a commit be written again."""
        self._held.pop(name, None)
        self._find_free()

    def _find_free(self) -> None:
        self._locked = frozenset().union(*self._held.values())
        used = self._locked.union(self._slots.values())
        self._free = [slot for slot in reversed(range(self._used)) if slot not in used]

    def _next(self) -> int:
        if self._used == len(self._table):
            self._table.flush()
            self._table = self._open(2 * len(self._table))
        self._reserve(self._used)
        self._used += 1
        return self._used - 1

    def _reserve(self, slot: int) -> None:
        """Take the room of a slot: a full disk is an error here, but the end of the process in a mapped page."""
        if hasattr(os, "posix_fallocate"):
            with self._path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), slot * self._unseen.size, self._unseen.size)

    def _open(self, slots: int) -> np.memmap:
        with self._path.open("ab") as file:
            file.truncate(slots * self._unseen.size)
        return np.memmap(self._path, np.uint8, "r+", shape=(slots, self._unseen.size))

    def _sound(self, client: int) -> np.ndarray:
        """The slot of a client, once its checksum is right."""
        record = self._table[self._slots[client]]
        if not np.array_equal(record[-_SUM:], _sum(record[:-_SUM])):
            raise CheckpointError(
                f"client memory {self._path.name}: what the client at position {client} kept is damaged; start afresh"
            )
        return record

    def _pack(self, value: Any) -> np.ndarray:
        pairs = zip(jax.tree.leaves(value), self._blank, strict=True)
        parts = [np.ascontiguousarray(leaf, like.dtype).reshape(-1).view(np.uint8) for leaf, like in pairs]
        packed = np.concatenate(parts)
        return np.concatenate([packed, _sum(packed)])

    def _unpack(self, record: np.ndarray) -> Any:
        leaves, start = [], 0
        for like in self._blank:
            leaves.append(np.array(record[start : start + like.nbytes]).view(like.dtype).reshape(like.shape))
            start += like.nbytes
        return jax.tree.unflatten(self._tree, leaves)


def _sum(values: np.ndarray) -> np.ndarray:
    return np.frombuffer(zlib.crc32(np.ascontiguousarray(values).data).to_bytes(_SUM, "little"), np.uint8)
