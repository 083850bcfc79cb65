"""A client memory on disk: what clients of SCAFFOLD and FedDyn keep, in a file of the run directory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from fedmime.errors import CheckpointError
from fedmime.files import flush
from fedmime.runs.slots import SlotFile


class DiskMemory:
    """A client memory in a file of equal slots, one for each client seen.

    The file alone does not say which slot belongs to which client: the index is part of a checkpoint. A slot that a
    commit refers to is not overwritten before that commit is released; a new value goes to a free slot instead. So a
    process that is killed at any time leaves a file from which every kept checkpoint can be resumed.

    Workers read and write the file themselves. They are told the slots of old values (`slots`) and are given free ones
    for new values (`take`), which `adopt` then makes the clients' own.

    Attributes:
        blank: the value of a client that was never seen.
        path: the file.
    """

    def __init__(
        self,
        blank: Any,
        path: str | os.PathLike[str],
        index: Mapping[int, int] | None = None,
        held: Mapping[int, Mapping[int, int]] | None = None,
    ) -> None:
        """Open the file at `path`, or create it with the first value.

        Args:
            blank: the value of a client that was never seen; it determines the layout of a slot.
            path: the file, which grows as clients are seen.
            index: slots by client, as returned by `commit`, to continue from that moment; by default no client was
                seen.
            held: the indexes of all commits that must stay readable, by name; by default only `index`.

        Raises:
            CheckpointError: the file has fewer slots than the indexes refer to.
        """
        self.blank, self.path = blank, Path(path)
        self._file = SlotFile(self.path, blank)
        self._slots = dict(index or {})
        held = {0: self._slots} if held is None else held
        self._held = {name: frozenset(slots.values()) for name, slots in held.items()}
        self._taken: set[int] = set()  # by workers, for values that nobody has adopted yet
        self._used = max((slot for slots in self._held.values() for slot in slots), default=-1) + 1
        if len(self._file) < self._used:
            words = f"holds {len(self._file)} clients, its index names {self._used}"
            raise CheckpointError(f"client memory {self.path.name}: {words}")
        self._find_free()

    def __len__(self) -> int:
        return len(self._slots)

    def read(self, clients: Sequence[int]) -> list[Any]:
        """See `ClientMemory.read` in the engine; raises `CheckpointError` if one of these values is damaged."""
        return self._file.read(clients, self._slots)

    def write(self, clients: Sequence[int], values: Sequence[Any]) -> Self:
        """Write values to the file and return this memory. Slots of commits are not touched.

        See `ClientMemory.write` in the engine.
        """
        for client in clients:
            if self._slots.get(client) is None or self._slots[client] in self._locked:
                self._slots[client] = self._next()
        self._file.write({self._slots[client]: value for client, value in zip(clients, values, strict=True)})
        return self

    def slots(self, clients: Sequence[int]) -> dict[int, int]:
        """The slots of those clients that were seen."""
        return {client: self._slots[client] for client in clients if client in self._slots}

    def take(self, count: int) -> list[int]:
        """Free slots for another process to write to. They are nobody else's until `adopt` or `give_back`."""
        found = [self._next() for _ in range(count)]
        self._taken.update(found)
        return found

    def give_back(self, slots: Iterable[int]) -> None:
        """Slots that were taken and are not needed, to which nobody writes any more."""
        returned = self._taken.intersection(slots)
        self._taken -= returned
        self._free += returned

    def adopt(self, slots: Mapping[int, int]) -> None:
        """Let clients have the values that another process has written to taken slots, by client."""
        for client, slot in slots.items():
            old = self._slots.get(client)
            self._slots[client] = slot
            if old is not None and old not in self._locked:
                self._free.append(old)
        self._taken.difference_update(slots.values())

    def commit(self, name: int = 0) -> dict[int, int]:
        """Make the present values permanent, under a name that replaces an earlier commit of the same name.

        Returns:
            The index, slots by client, from which a new `DiskMemory` finds these values.
        """
        if self._slots:
            flush(self.path)
        self._held[name] = frozenset(self._slots.values())
        self._find_free()
        return dict(self._slots)

    def release(self, name: int) -> None:
        """Give up a commit, so that slots that only it refers to can be reused."""
        self._held.pop(name, None)
        self._find_free()

    def _find_free(self) -> None:
        """Compute which slots commits protect, and which slots neither a commit nor anybody else uses."""
        self._locked = frozenset().union(*self._held.values())
        used = self._locked.union(self._slots.values(), self._taken)
        self._free = [slot for slot in reversed(range(self._used)) if slot not in used]

    def _next(self) -> int:
        """A free slot, or a new one at the end of the file."""
        if self._free:
            return self._free.pop()
        self._used += 1
        return self._used - 1
