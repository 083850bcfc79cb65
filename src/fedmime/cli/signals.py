"""SIGINT and SIGTERM: the first lets the round end and saves, the second ends at once."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any, Self

_WATCHED = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """A context in which a signal is noted; `stop` gives it to the engine."""

    def __init__(self) -> None:
        self._seen: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _WATCHED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stop(self) -> int | None:
        """The signal that was seen, if any."""
        return self._seen

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._seen = number
        for watched in _WATCHED:
            signal.signal(watched, signal.SIG_DFL)
        sys.stderr.write("\nfedmime: the round ends and is saved; a second signal ends at once\n")
        sys.stderr.flush()
