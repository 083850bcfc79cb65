"""What a callback of `simulate` is: three methods that hear of the start, the rounds and the end of a run."""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from fedmime.errors import ConfigError


class Mark(NamedTuple):
    """Where a callback stands. A run directory keeps it, so that a resumed run continues the same tracked run."""

    id: str
    """The name by which the callback finds its own record of the run again."""
    rounds: int
    """How many rounds are in it."""


@dataclasses.dataclass(frozen=True)
class Started:
    """What a callback learns when a run starts or goes on."""

    name: str
    """The name of the run's directory, or of its algorithm."""
    config: Mapping[str, Any]
    """What was asked for, as `config.yaml` records it: nested dictionaries of plain values."""
    rounds: int
    """The number of rounds of the whole run."""
    finished: int = 0
    """How many of them earlier processes have finished."""
    mark: Mark | None = None
    """Where this callback stood when the run was broken off; None for a new run and without a directory."""


class Callback:
    """Hears of a run. Subclasses override what they need; every method does nothing by default.

    A method that raises an exception does not end the run. The exception is logged as a warning, and the callback is
    left alone until the run ends; then it is told once more what it has missed.
    """

    name: str = "callback"
    """Stands in warnings and names the callback's mark in the run directory."""

    def start(self, run: Started) -> Mark | None:
        """A run starts or goes on.

        Returns:
            The callback's mark: rows from `Mark.rounds` on are those it is told. None stands for all rounds.
        """

    def rounds(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rounds have ended.

        Args:
            rows: the rows of the history that the callback has not been told yet, in order: one after every round, and
                several if a run goes on that was not told to the callback before.
        """

    def end(self, state: str, reason: str | None) -> None:
        """The run has ended.

        Args:
            state: "done", "preempted" (by a signal; it may go on) or "failed".
            reason: the error that ended the run, if one did.
        """


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a row that can be drawn: finite numbers, without the number of the round.

    What was not measured or is not finite is null in `metrics.jsonl`; trackers are not told of it.
    """
    return {
        name: float(value)
        for name, value in row.items()
        if name != "round" and isinstance(value, int | float) and math.isfinite(value)
    }


def package(name: str, module: str) -> ModuleType:
    """Import the package of a tracker; `ConfigError` with the command that installs it if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(f"trackers.{name}: {name} is an extra: pip install 'fedmime[{name}]'") from None
