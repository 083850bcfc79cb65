"""Successive halving: no point is given up before a quarter of the rounds, three go all the way.

With momentum or Adam the best rate of a whole run is often a slow starter: cuts that come earlier, or that leave two
points, lose it. `python -m benchmarks.halving` measures the choice against whole grids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedmime.experiments.sweep_trial import Trial

_LAST = 3  # points that go all the way


class Rung(NamedTuple):
    """So many points go on until so many rounds are done."""

    points: int
    rounds: int


def rungs(points: int, rounds: int) -> list[Rung]:
    """A third of the points goes on after a quarter of the rounds, and three of these after half of them.

    Nine points cost at most 9/4 + 3 · 3/4 = 4.5 full runs; those that diverge cost less.
    """
    plan = [Rung(points, rounds)]
    for after, left in {rounds // 4: max(_LAST, math.ceil(points / 3)), rounds // 2: _LAST}.items():
        if after and left < plan[-1].points:
            plan[-1:] = [Rung(plan[-1].points, after), Rung(left, rounds)]
    return plan


def better(trials: Sequence[Trial], points: int, after: int) -> list[Trial]:
    """So many trials with the highest scores after a round; of equal ones the first, as the grid has them."""
    return sorted(trials, key=lambda trial: -trial.score(after))[:points]


def cost(plan: list[Rung]) -> float:
    """Of a plan in full runs, if no point diverges."""
    before = [0, *(rung.rounds for rung in plan)]
    return sum(rung.points * (rung.rounds - start) for rung, start in zip(plan, before, strict=False)) / before[-1]


def due(plan: list[Rung], every: int) -> int:
    """Rounds between evaluations: as asked, but often enough for the first rung to be scored."""
    return max(1, min(every, plan[0].rounds))
