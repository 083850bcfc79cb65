"""What a run is to reach, and after how many rounds it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Target(NamedTuple):
    """A test accuracy to reach, or how close the training loss has to come to its optimum."""

    value: float
    optimum: float | None = None  # of the training loss; without one the value is an accuracy

    @property
    def metric(self) -> str:
        """The column of a history that is looked at."""
        return "test_accuracy" if self.optimum is None else "train_loss"

    def measured(self, history: Mapping[str, np.ndarray]) -> np.ndarray:
        """The accuracy after every round, or the training loss less its optimum; NaN where it was not measured."""
        found = np.asarray(history.get(self.metric, np.full(len(history["round"]), np.nan)), float)
        return found if self.optimum is None else found - self.optimum

    def rounds(self, history: Mapping[str, np.ndarray]) -> int | None:
        """After how many rounds the target was first reached; None if it never was."""
        found = self.measured(history)
        reached = np.flatnonzero(found >= self.value if self.optimum is None else found <= self.value)
        return int(history["round"][reached[0]]) + 1 if len(reached) else None

    def words(self) -> str:
        """Such as `96 % test accuracy` or `a training loss within 0.001 of its optimum`."""
        if self.optimum is None:
            return f"{100 * self.value:g} % test accuracy"
        return f"a training loss within {self.value:g} of its optimum"


def asked(config: Mapping[str, Any]) -> Target | None:
    """The target in a run's configuration."""
    value, gap, optimum = (config.get(name) for name in ("target", "target_gap", "optimum"))
    if gap is not None and optimum is not None:
        return Target(float(gap), float(optimum))
    return None if value is None else Target(float(value))
