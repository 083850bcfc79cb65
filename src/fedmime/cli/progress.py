"""Live progress of a run: one line on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fedmime.runs.sizes import size
from fedmime.trackers.pace import Pace

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from fedmime.engine import Info

_EVERY, _EVALUATED = 5.0, 1.0  # seconds between plain lines, and between those that report an evaluation


class Progress:
    """Shows a run's rounds; a context whose `on_round` goes to the engine."""

    def __init__(self, label: str, rounds: int, bytes_a_round: int, quiet: bool) -> None:
        self._label, self._rounds, self._bytes, self._quiet = label, rounds, bytes_a_round, quiet
        self._live = sys.stderr.isatty() and not quiet
        self._pace, self._told = Pace(), -_EVERY
        self._accuracy = self._loss = self._epsilon = float("nan")
        self._bar: Any = None
        self._ran = False  # any round in this process
        self.before = 0  # rounds of earlier runs that are shown in the same line

    def __enter__(self) -> Self:
        if self._live:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TextColumn("{task.fields[told]}"),
            )
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._rounds, completed=0, told="compiling")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is None and not self._ran and not self._quiet:
            sys.stderr.write(f"{self._label}: all {self._rounds} rounds were finished already\n")

    def on_round(self, info: Info, measured: Mapping[str, float]) -> None:
        """Show a finished round."""
        self._ran = True
        self._loss, self._epsilon = info.loss, info.epsilon
        self._accuracy = measured.get("test_accuracy", self._accuracy)
        done = self.before + info.round + 1
        told = self._words(done)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, told=told)
        elif not self._quiet and self._due(done == self._rounds, "test_accuracy" in measured):
            self._told = time.monotonic()
            sys.stderr.write(f"{self._label}: round {done}/{self._rounds}, {told}\n")
            sys.stderr.flush()

    def _due(self, last: bool, evaluated: bool) -> bool:
        """Whether a plain line is worth its place."""
        return last or time.monotonic() - self._told > (_EVALUATED if evaluated else _EVERY)

    def _words(self, done: int) -> str:
        speed = self._pace.after_round()
        accuracy = "" if self._accuracy != self._accuracy else f"accuracy {self._accuracy:.2%}, "
        accuracy += "" if self._epsilon != self._epsilon else f"ε {self._epsilon:.2f}, "
        left = "" if speed is None else f"{speed:.2f} rounds/s, {clock((self._rounds - done) / speed)} left, "
        return f"{accuracy}loss {self._loss:.3f}, {left}{size(done * self._bytes)}"


def counter(quiet: bool) -> Bar:
    """A bar on standard error that counts what is done and is gone in the end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bar(*columns, console=Console(stderr=True), disable=quiet, transient=True)


def clock(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
