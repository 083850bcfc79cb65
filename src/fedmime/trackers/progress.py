"""A progress line for scripts and notebooks."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fedmime.trackers.callback import Callback, Mark, Started
from fedmime.trackers.pace import Pace

_REWRITTEN, _APPENDED = 0.2, 5.0  # least seconds between two states of a line, and between two lines of a file


class Progress(Callback):
    """One line on standard output that is rewritten; where it cannot be rewritten, a line every five seconds."""

    name = "progress"

    def __init__(self) -> None:
        self._total, self._finished, self._pace, self._shown = 0, 0, Pace(), -_APPENDED
        self._measured: dict[str, float] = {}
        self._width = 0

    def start(self, run: Started) -> Mark | None:
        self._total, self._finished, self._pace = run.rounds, run.finished, Pace()

    def rounds(self, rows: Sequence[Mapping[str, Any]]) -> None:
        row, rewritten = rows[-1], _rewritable()
        self._measured |= {name: row[name] for name in ("test_accuracy", "test_loss") if name in row}
        now, done = time.monotonic(), row["round"] + 1
        speed = self._pace.after_round() if done > self._finished else None  # others are of earlier processes
        if done < self._total and now - self._shown < (_REWRITTEN if rewritten else _APPENDED):
            return
        self._shown = now
        figures = self._measured | {"loss": row["loss"]}
        told = [f"{name.replace('_', ' ')} {value:.3f}" for name, value in figures.items() if value is not None]
        told += [] if speed is None else [f"{speed:.1f} rounds/s"]
        text = ", ".join([f"round {done}/{self._total}", *told])
        sys.stdout.write(f"\r{text:<{self._width}}" if rewritten else f"{text}\n")
        sys.stdout.flush()
        self._width = len(text)

    def end(self, state: str, reason: str | None) -> None:
        if self._width and _rewritable():
            sys.stdout.write("\n")


def progress() -> Callback:
    """A callback that shows how far a run is, with its losses and accuracy, in a terminal or a notebook."""
    return Progress()


def _rewritable() -> bool:
    """Whether a carriage return begins the line anew: on terminals and in notebooks, whose output is IPython's."""
    return sys.stdout.isatty() or type(sys.stdout).__module__.startswith("ipykernel")
