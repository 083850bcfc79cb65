"""A client's record of the sums that it has helped to reveal.

The difference of two sums over the same messages, one with a client and one without it, is that client's message. So
whatever is asked for once more, for example by a server that was killed and repeats a round, may only be revealed over
the same clients as before.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path


class Disclosures:
    """Which clients were in which sum of a run, by the name of its exchange.

    Args:
        path: a file that outlives the node's process, to which a line is added for every sum; None remembers sums as
            long as the process lives.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, str] = {}
        if path is not None:
            with contextlib.suppress(FileNotFoundError):
                lines = path.read_text(errors="replace").splitlines()
                self._known = {name: digest for name, _, digest in (line.rpartition(" ") for line in lines)}

    def admit(self, exchange: str, clients: tuple[int, ...]) -> bool:
        """Whether the sum over these clients may be revealed; if so, no other one of this exchange ever may.

        It is written down before it is answered: a node that is killed in between has revealed nothing.
        """
        digest = hashlib.sha256(",".join(map(str, clients)).encode()).hexdigest()
        if exchange not in self._known:
            self._append(f"\n{exchange} {digest}")  # begins a line, whatever the last one lacks
            self._known[exchange] = digest
        return self._known[exchange] == digest

    def _append(self, line: str) -> None:
        if self._path is None:
            return
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
