"""Rounds are prepared one ahead, in their order, and an error belongs to its round."""

import pytest

from fedmime.engine.prefetch import Prefetch


class Backend:
    """Notes what it prepares; some rounds it cannot."""

    def __init__(self, *bad: int) -> None:
        self.prepared: list[str] = []
        self._bad = [f"work of {t}" for t in bad]

    def prepare(self, work: str) -> None:
        if work in self._bad:
            raise ValueError(work)
        self.prepared.append(work)


def _prefetch(backend: Backend, start: int = 0, rounds: int = 3) -> Prefetch:
    return Prefetch(lambda t: f"work of {t}", backend, start, rounds)


def test_rounds_come_in_their_order() -> None:
    backend = Backend()
    prefetch = _prefetch(backend, start=2, rounds=5)
    assert [prefetch.take() for _ in range(3)] == ["work of 2", "work of 3", "work of 4"]
    assert backend.prepared == ["work of 2", "work of 3", "work of 4"]


def test_a_round_is_prepared_once_and_before_it_is_taken() -> None:
    backend = Backend()
    prefetch = _prefetch(backend)
    prefetch.take()
    for _ in range(2):
        prefetch.prepare()
    assert backend.prepared == ["work of 0", "work of 1"]
    assert prefetch.take() == "work of 1"
    assert backend.prepared == ["work of 0", "work of 1"]


def test_nothing_is_prepared_after_the_last_round() -> None:
    backend = Backend()
    prefetch = _prefetch(backend, rounds=1)
    prefetch.take()
    prefetch.prepare()
    assert backend.prepared == ["work of 0"]


def test_an_error_waits_for_its_round() -> None:
    prefetch = _prefetch(Backend(1))
    assert prefetch.take() == "work of 0"
    prefetch.prepare()
    with pytest.raises(ValueError, match="work of 1"):
        prefetch.take()
    assert prefetch.take() == "work of 2"


def test_an_error_of_the_draw_waits_too() -> None:
    prefetch = Prefetch(lambda t: 1 // (1 - t), Backend(), 0, 2)
    assert prefetch.take() == 1
    prefetch.prepare()
    with pytest.raises(ZeroDivisionError):
        prefetch.take()


def test_a_round_that_has_to_wait_is_not_drawn_ahead() -> None:
    backend = Backend()
    prefetch = Prefetch(lambda t: f"work of {t}", backend, 0, 2, after_previous=True)
    assert prefetch.take() == "work of 0"
    prefetch.prepare()
    assert backend.prepared == ["work of 0"]
    assert prefetch.take() == "work of 1"
