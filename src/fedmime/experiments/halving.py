"""Successive halving: every rung doubles the rounds and keeps the better half of the points, down to two."""

from __future__ import annotations

import math
from typing import NamedTuple

_LAST = 2  # points that go all the way


class Rung(NamedTuple):
    """So many points go on until so many rounds are done."""

    points: int
    rounds: int


def rungs(points: int, rounds: int) -> list[Rung]:
    """The rungs for a grid: nine points cost at most 9/8 + 5/8 + 3/4 + 2/2 = 3.5 full runs.

    Points that diverge cost less.
    """
    counts = [points]
    while counts[-1] > _LAST:
        counts.append(math.ceil(counts[-1] / 2))
    ends = [max(1, rounds >> left) for left in reversed(range(len(counts)))]
    wanted: dict[int, Rung] = {}
    for count, end in zip(counts, ends, strict=True):
        wanted.setdefault(end, Rung(count, end))  # of several rungs after the same round the widest decides
    return list(wanted.values())


def cost(plan: list[Rung]) -> float:
    """Of a plan in full runs, if no point diverges."""
    before = [0, *(rung.rounds for rung in plan)]
    return sum(rung.points * (rung.rounds - start) for rung, start in zip(plan, before, strict=False)) / before[-1]


def due(plan: list[Rung], every: int) -> int:
    """Rounds between evaluations: as asked, but often enough for the first rung to be scored."""
    return max(1, min(every, plan[0].rounds))
