"""Who computes which part: faster workers get more, and nobody waits for what another could do sooner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmime as fm
from fedmime.engine.backends.ray.dispatch import _GAIN, Order, assigned, collect
from fedmime.engine.backends.ray.seat import Seat
from fedmime.engine.backends.ray.worker import Place

COSTS = st.dictionaries(st.integers(0, 40), st.floats(0.1, 100), max_size=20)
PACES = st.dictionaries(st.integers(0, 9), st.floats(0.01, 10), min_size=1)


def _ends(chosen: Mapping[int, int], costs: Mapping[int, float], paces: Mapping[int, float]) -> dict[int, float]:
    return {w: sum(costs[n] * paces[w] for n, worker in chosen.items() if worker == w) for w in paces}


@given(COSTS, PACES)
def test_the_last_worker_ends_soon_enough(costs: dict[int, float], paces: dict[int, float]) -> None:
    """The bound of list scheduling: all work and one longest part for every worker, done at the speed of all."""
    usual = {number: number % 10 for number in costs}
    chosen = assigned(costs, paces, usual, dict.fromkeys(paces, 0.0))
    assert chosen.keys() == costs.keys()
    speed = sum(1 / pace for pace in paces.values())
    bound = (sum(costs.values()) + len(paces) * max(costs.values(), default=0)) / speed
    assert max(_ends(chosen, costs, paces).values()) <= _GAIN * bound * (1 + 1e-9)


def test_equal_workers_get_their_usual_parts() -> None:
    costs = {number: 10.0 + number % 3 / 10 for number in range(8)}
    usual = {number: number % 2 for number in costs}
    assert assigned(costs, {0: 1.0, 1: 1.03}, usual, {0: 0.0, 1: 0.0}) == usual


def test_a_worker_three_times_as_fast_gets_three_times_as_much() -> None:
    costs = dict.fromkeys(range(8), 1.0)
    chosen = assigned(costs, {0: 1.0, 1: 3.0}, {number: number % 2 for number in costs}, {0: 0.0, 1: 0.0})
    assert sorted(chosen.values()).count(0) == 6


@pytest.mark.parametrize(("load", "expected"), [(0.0, 0), (5.0, 1)])
def test_work_that_a_worker_has_already_counts(load: float, expected: int) -> None:
    assert assigned({7: 2.0}, {0: 1.0, 1: 1.5}, {}, {0: load, 1: 0.0}) == {7: expected}


class Replacing:
    """A crew of one worker, in whose place another one is ready when it dies."""

    def __init__(self) -> None:
        self.lost: list[Seat] = []
        self.seats = [self._hired()]

    @property
    def ready(self) -> list[Seat]:
        return self.seats

    def lose(self, seat: Seat, why: str) -> None:
        seat.alive = False
        self.lost.append(seat)
        self.seats = [self._hired()]

    def check_head(self) -> None: ...

    def await_one(self) -> None: ...

    def admit(self, timeout: float) -> None: ...

    @staticmethod
    def _hired() -> Seat:
        seat = Seat(0, None)
        seat.place = Place("here", 1)
        return seat


def test_a_part_over_which_workers_die_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="the extra fedmime[ray] is not installed")

    def died(ref: object) -> Any:
        raise ray.exceptions.RayError("the worker died\nof a lack of memory")

    monkeypatch.setattr(ray, "wait", lambda refs, **_: (refs[:1], refs[1:]))
    monkeypatch.setattr(ray, "get", died)
    crew: Any = Replacing()
    words = "^ray: 3 workers have died over the same part of a cohort, the last of them: the worker died; .* resume"
    with pytest.raises(fm.ClusterError, match=words):
        collect(crew, {0: Order(1.0, lambda seat: object())}, {})
    assert len(crew.lost) == 3
