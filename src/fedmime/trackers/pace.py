"""How fast rounds go."""

from __future__ import annotations

import time


class Pace:
    """The speed of this process since the end of its first round, in which it also compiled."""

    def __init__(self) -> None:
        self._rounds, self._since = -1, 0.0  # after the first

    def after_round(self) -> float | None:
        """Note that a round has ended. Gives rounds per second; None after the first, which says nothing about them."""
        now = time.monotonic()
        if self._rounds < 0:
            self._since = now
        self._rounds += 1
        return self._rounds / (now - self._since) if self._rounds and now > self._since else None
