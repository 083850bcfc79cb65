"""Rounds are prepared one ahead, in their order, and an error belongs to its round."""

from typing import NamedTuple

import pytest

from fedmime.engine.prefetch import Prefetch


class Work(NamedTuple):
    """The number of a round, and whether it is a gradient-only one."""

    round: int
    prime: bool = False


class Backend:
    """Notes what it prepares; some rounds it cannot."""

    def __init__(self, *bad: int) -> None:
        self.prepared: list[Work] = []
        self._bad = bad

    def prepare(self, work: Work) -> None:
        if work.round in self._bad:
            raise ValueError(work)
        self.prepared.append(work)


def _prefetch(backend: Backend, start: int = 0, rounds: int = 3) -> Prefetch:
    return Prefetch(Work, backend, start, rounds)


def test_rounds_come_in_their_order() -> None:
    backend = Backend()
    prefetch = _prefetch(backend, start=2, rounds=5)
    assert [prefetch.take() for _ in range(3)] == [Work(2), Work(3), Work(4)]
    assert backend.prepared == [Work(2), Work(3), Work(4)]


def test_a_round_is_prepared_once_and_before_it_is_taken() -> None:
    backend = Backend()
    prefetch = _prefetch(backend)
    prefetch.take()
    for _ in range(2):
        prefetch.prepare()
    assert backend.prepared == [Work(0), Work(1)]
    assert prefetch.take() == Work(1)
    assert backend.prepared == [Work(0), Work(1)]


def test_nothing_is_prepared_after_the_last_round() -> None:
    backend = Backend()
    prefetch = _prefetch(backend, rounds=1)
    prefetch.take()
    prefetch.prepare()
    assert backend.prepared == [Work(0)]


def test_an_error_waits_for_its_round() -> None:
    prefetch = _prefetch(Backend(1))
    assert prefetch.take() == Work(0)
    prefetch.prepare()
    with pytest.raises(ValueError, match="round=1"):
        prefetch.take()
    assert prefetch.take() == Work(2)


def test_an_error_of_the_draw_waits_too() -> None:
    prefetch = Prefetch(lambda t: Work(1 // (1 - t)), Backend(), 0, 2)
    assert prefetch.take() == Work(1)
    prefetch.prepare()
    with pytest.raises(ZeroDivisionError):
        prefetch.take()


def test_a_round_that_has_to_wait_is_not_drawn_ahead() -> None:
    backend = Backend()
    prefetch = Prefetch(Work, backend, 0, 2, after_previous=True)
    assert prefetch.take() == Work(0)
    prefetch.prepare()
    assert backend.prepared == [Work(0)]
    assert prefetch.take() == Work(1)


def test_the_round_after_a_gradient_only_one_is_not_drawn_ahead() -> None:
    backend = Backend()
    prefetch = Prefetch(lambda t: Work(t, prime=t == 0), backend, 0, 3)
    for prepared in (1, 3):
        prefetch.take()
        prefetch.prepare()
        assert len(backend.prepared) == prepared
