"""How many programs JAX builds, in this process and in the workers that it sends a problem to."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax.monitoring

_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_written: set[str] = set()  # files that this process writes to


class Counted:
    """A problem's check that also notes in a file every program that a process builds from then on.

    Workers unpickle it with the problem, so that they count, too. A program that is found in the cache on disk counts,
    one that is run again does not.
    """

    def __init__(self, check: Any, file: str) -> None:
        self._check, self._file = check, file
        if file not in _written:
            _written.add(file)
            jax.monitoring.register_event_duration_secs_listener(self._note)

    def __call__(self, fields: Any) -> None:
        self._check(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return Counted, (self._check, self._file)

    def _note(self, event: str, *_: object, **__: object) -> None:
        if event == _LOWERED:
            with Path(self._file).open("a") as written:
                written.write(f"{os.getpid()}\n")


def counted(problem: Any, file: Path) -> Any:
    """The problem, with its programs counted in a file from now on."""
    file.touch()
    return dataclasses.replace(problem, check=Counted(problem.check, str(file)))


def programs(file: Path) -> int:
    """The number of programs that were built so far."""
    return len(file.read_text().splitlines())


def processes(file: Path) -> int:
    """The number of processes that have built any: those that have not cannot be told from those that do not count."""
    return len(set(file.read_text().splitlines()))
