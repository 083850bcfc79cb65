"""Which files of the package one round of `simulate` passes through, and how often control changes file."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import fedmime as fm

ROOT = Path(fm.__file__).parent


class Trace:
    """Notes the file of every function of the package that is entered or returned to while it is on."""

    def __init__(self) -> None:
        self.path: list[str] = []

    def __enter__(self) -> Trace:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        caller = frame.f_back if event == "return" else frame
        name = caller.f_code.co_filename if event in ("call", "return") and caller is not None else ""
        if name.startswith(str(ROOT)):
            file = str(Path(name).relative_to(ROOT))
            if not self.path or self.path[-1] != file:
                self.path.append(file)

    @property
    def files(self) -> list[str]:
        """The files, in the order of their first visit."""
        return list(dict.fromkeys(self.path))

    @property
    def switches(self) -> int:
        """How often the next function is in another file."""
        return len(self.path) - 1


def one_round(algorithm: Any, backend: str) -> Trace:
    """The trace of the third round of a run, from the draw of its cohort to its recorded metrics."""
    problem = fm.models.logistic((8, 8, 1), 10)
    population = fm.data.digits(clients=20, seed=0)
    trace = Trace()

    def on_round(info: fm.Info, _: Any) -> None:
        if info.round == 1:
            trace.__enter__()
        if info.round == 2:
            trace.__exit__()

    fm.simulate(algorithm, problem, population, 4, 1, 100, evaluate_every=1, on_round=on_round, backend=backend)
    return trace
