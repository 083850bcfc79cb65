"""A back end whose clients cost nothing: what is left of a round is the server's and the driver's own part."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmime.engine.backends.backend import Answer
from fedmime.engine.backends.specification import NO_NEEDS, Local, Needs


class _Repeated:
    """Asks the local back end once for each phase, and repeats its answers in all later rounds."""

    def __init__(self, backend: Any) -> None:
        self.problem, self.memory = backend.problem, None
        self._backend, self._answers = backend, {}

    def prepare(self, work: Any) -> None:
        """Lay nothing out."""

    def ask(self, work: Any, points: Any = (), message: Any = None, bound: Any = np.inf) -> Answer:
        phase = message is None
        if phase not in self._answers:
            self._answers[phase] = self._backend.ask(work, points, message, bound)
        return self._answers[phase]

    def settle(self, work: Any, accepted: bool) -> None:
        self._backend.settle(work, accepted)

    def metrics(self, params: Any, batch: Any) -> dict[str, Any]:
        return self._backend.metrics(params, batch)

    def close(self) -> None:
        self._backend.close()


class Repeating:
    """How to start it."""

    def start(self, problem: Any, model: Any, needs: Needs = NO_NEEDS) -> Any:
        return _Repeated(Local().start(problem, model, needs))
