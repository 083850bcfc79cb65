"""Tells callbacks about a run, keeps their marks in the run directory, and keeps their failures away from it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from fedmime.errors import FedmimeError, Stopped
from fedmime.files import read_object, whole_file
from fedmime.runs.directory import TRACKED
from fedmime.runs.notes import warnings
from fedmime.trackers.callback import Callback, Mark, Started


class Telling:
    """The callbacks of a run. It is a context manager: callbacks hear of the start and of the end.

    Args:
        callbacks: who is told.
        rows: the history, a list that grows by one row a round.
        started: what callbacks learn at the start, without their marks.
        directory: the run directory, which names the run; None for a run without one.
    """

    def __init__(
        self, callbacks: Sequence[Callback], rows: Sequence[Mapping[str, Any]], started: Started, directory: Path | None
    ) -> None:
        names = [callback.name for callback in callbacks]
        if directory is not None:
            started = dataclasses.replace(started, name=directory.resolve().name)
        self._each = [
            _Told(callback, rows, started, None if directory is None else directory / TRACKED / _file(names, i))
            for i, callback in enumerate(callbacks)
        ]

    def __enter__(self) -> Self:
        for told in self._each:
            told.attempt(told.start)
        self.rounds()
        return self

    def rounds(self) -> None:
        """Tell the rows that were added to the history."""
        for told in self._each:
            told.attempt(told.rounds)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        stopped = isinstance(error, Stopped | KeyboardInterrupt)
        state = "done" if error is None else "preempted" if stopped else "failed"
        reason = None
        if error is not None:
            reason = str(error) if isinstance(error, FedmimeError) else f"{type(error).__name__}: {error}"
        for told in self._each:
            told.end(state, reason)


class _Told:
    """One callback, and what it has been told."""

    def __init__(
        self, callback: Callback, rows: Sequence[Mapping[str, Any]], started: Started, file: Path | None
    ) -> None:
        self._callback, self._rows, self._started, self._file = callback, rows, started, file
        self._id: str | None = None
        self._done = 0  # rows that it knows
        self._ready = self._failed = False

    def attempt(self, step: Callable[[], None]) -> None:
        """Do something with the callback unless it has failed before; a failure is a warning and no error."""
        if self._failed:
            return
        try:
            step()
        except Exception as error:
            self._failed = True
            words = "%s failed after round %d (%s); the run goes on, and tells it what it missed when it ends"
            warnings.warning(words, self._callback.name, len(self._rows), _line(error))

    def start(self) -> None:
        mark = self._callback.start(dataclasses.replace(self._started, mark=self._mark()))
        if mark is not None:
            self._id, self._done = mark
            self._keep(whole=True)
        self._ready = True

    def rounds(self) -> None:
        if rows := self._rows[self._done :]:
            self._callback.rounds(rows)
            self._done += len(rows)
            self._keep()

    def end(self, state: str, reason: str | None) -> None:
        """Tell what is left, which is the last row of a run that diverged or all rows since a failure; then the end."""
        try:
            if not self._ready:
                self.start()
            self.rounds()
            self._callback.end(state, reason)
        except Exception as error:
            lacks = max(len(self._rows) - self._done, 0)
            words = "%s failed at the end of the run (%s); it lacks %d of %d rounds"
            warnings.warning(words, self._callback.name, _line(error), lacks, len(self._rows))

    def _mark(self) -> Mark | None:
        """The mark of an earlier process; None if there is none that can be read."""
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found = read_object(self._file)
                return Mark(str(found["id"]), int(found["rounds"]))
        return None

    def _keep(self, whole: bool = False) -> None:
        """Write the mark. Only the first is flushed to disk: the others need not survive more than this process."""
        if self._file is None or self._id is None:
            return
        text = json.dumps({"id": self._id, "rounds": self._done})
        if whole:
            self._file.parent.mkdir(exist_ok=True)
            with whole_file(self._file) as temporary:
                temporary.write_text(text)
            return
        beside = self._file.with_name(f".{self._file.name}.tmp")
        beside.write_text(text)
        os.replace(beside, self._file)


def _file(names: Sequence[str], place: int) -> str:
    """The name of a callback's file; a second callback of the same name gets a number."""
    before = names[:place].count(names[place])
    return f"{names[place]}{f'-{before + 1}' if before else ''}.json"


def _line(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
