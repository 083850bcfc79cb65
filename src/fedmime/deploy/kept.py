"""What a client keeps between rounds, on its own machine: SCAFFOLD's and FedDyn's vectors, error-feedback residuals.

Values are numbered by the round that made them. Which of them counts is the server's decision: it may abandon a round
after the client has trained, and a server that was killed goes on from its last checkpoint. So every request names the
round whose value to start from, and how far back a resumed server may go; older values are removed, and so are newer
ones, which never came to count.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Protocol

from fedmime.files import private_directory, whole_file

_DIGEST = hashlib.sha256().digest_size


class Shelf(Protocol):
    """Byte strings by round."""

    def rounds(self) -> list[int]:
        """The rounds whose values are there."""
        ...

    def read(self, number: int) -> bytes | None:
        """The value of a round; None if it is missing or damaged."""
        ...

    def write(self, number: int, value: bytes) -> None:
        """Store the value of a round in place of an earlier one."""
        ...

    def remove(self, number: int) -> None:
        """Remove the value of a round."""
        ...


class MemoryShelf:
    """Values in memory, for a node that lives as long as the run."""

    def __init__(self) -> None:
        self._values: dict[int, bytes] = {}

    def rounds(self) -> list[int]:
        """See `Shelf.rounds`."""
        return list(self._values)

    def read(self, number: int) -> bytes | None:
        """See `Shelf.read`."""
        return self._values.get(number)

    def write(self, number: int, value: bytes) -> None:
        """See `Shelf.write`."""
        self._values[number] = value

    def remove(self, number: int) -> None:
        """See `Shelf.remove`."""
        del self._values[number]


class DiskShelf:
    """Values in files of a private directory, each with its SHA-256 in front; they outlive the node's process.

    Args:
        directory: created if it does not exist. Values are derived from the client's data, so nobody else may read it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = private_directory(directory)

    def rounds(self) -> list[int]:
        """See `Shelf.rounds`."""
        names = [path.stem for path in self._directory.glob("*.kept")]
        return [int(name) for name in names if name.isdecimal()]

    def read(self, number: int) -> bytes | None:
        """See `Shelf.read`."""
        with contextlib.suppress(FileNotFoundError):
            found = self._path(number).read_bytes()
            if hashlib.sha256(found[_DIGEST:]).digest() == found[:_DIGEST]:
                return found[_DIGEST:]
        return None

    def write(self, number: int, value: bytes) -> None:
        """See `Shelf.write`. The file appears whole or not at all."""
        with whole_file(self._path(number), mode=0o600) as temporary:
            temporary.write_bytes(hashlib.sha256(value).digest() + value)

    def remove(self, number: int) -> None:
        """See `Shelf.remove`."""
        self._path(number).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number}.kept"


def prune(shelf: Shelf, kept_from: int, since: int) -> None:
    """Remove values that no request can ask for any more.

    Args:
        kept_from: the round of the value that counts now. Newer ones belong to rounds that were abandoned, or that a
            resumed server will repeat.
        since: the oldest round from which a resumed server may go on; the value that counted then is the last one
            before it.
    """
    rounds = shelf.rounds()
    counted = max((number for number in rounds if number < since and number <= kept_from), default=since)
    for number in rounds:
        if number > kept_from or number < counted:
            shelf.remove(number)
