"""Live progress of many runs: one line on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from fedmime.cli.progress import counter

_EVERY = 15.0  # seconds between plain lines


class Points:
    """Shows how many rounds of a sweep's points are done; a context whose `show` goes to the experiment."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._told, self._bar = quiet, time.monotonic(), None
        self._tasks: dict[tuple[str, int], Any] = {}

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not self._quiet:
            self._bar = counter(self._quiet)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, words: str) -> None:
        """Tell something once."""
        if self._bar is not None:
            self._bar.console.print(words, highlight=False, soft_wrap=True)
        elif not self._quiet:
            sys.stderr.write(f"{words}\n")
            sys.stderr.flush()

    def show(self, what: str, done: int, total: int) -> None:
        """Tell that so many of all rounds are done."""
        if self._bar is not None:
            if (what, total) not in self._tasks:
                self._tasks[what, total] = self._bar.add_task(what, total=total)
            self._bar.update(self._tasks[what, total], completed=done)
        elif not self._quiet and time.monotonic() - self._told > _EVERY:
            self._told = time.monotonic()
            sys.stderr.write(f"{what}: {done} of {total} rounds\n")
            sys.stderr.flush()
