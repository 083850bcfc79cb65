"""Points that are dealt to workers: every point once, about as much work for all, nothing lost with a worker."""

import itertools
import logging

from hypothesis import given
from hypothesis import strategies as st

from fedmime.experiments.sweep_spread import Answer, Spread, deal
from fedmime.experiments.sweep_trial import Trial

UNTIL = 20


def trials(done) -> list[Trial]:
    return [Trial({"eta": float(place)}, f"point {place}", done=at) for place, at in enumerate(done)]


@given(st.lists(st.integers(0, UNTIL - 1), min_size=1, max_size=30), st.integers(1, 8))
def test_every_point_is_dealt_once_and_shares_differ_by_at_most_a_point(done: list[int], workers: int) -> None:
    points = trials(done)
    shares = deal(points, UNTIL, workers)
    assert sorted(map(id, itertools.chain(*shares))) == sorted(map(id, points))
    assert len(shares) == min(workers, len(points))
    work = [sum(UNTIL - trial.done for trial in share) for share in shares]
    assert max(work) - min(work) <= UNTIL


class Scripted:
    """Workers that do a round of every point at a time; one of them dies at the second order."""

    def __init__(self, mortal: bool = False) -> None:
        self.count, self.mortal, self.orders, self.done, self.closed = 2, mortal, 0, {}, False

    def run(self, shares, until: int, on_round, stop):
        self.orders += 1
        answers = []
        for number, share in enumerate(shares):
            for place in share:
                self.done[place] = self.done.get(place, 0) + 1  # saved, even if the worker dies
                on_round()
            if self.mortal and self.orders == 2 and number == 0:
                self.count = 1
                continue
            facts = {place: {"done": self.done[place], "diverged": place == 3} for place in share}
            answers.append(Answer(facts, [("fedmime", "the same words")]))
        return answers, stop and stop()

    def close(self) -> None:
        self.closed = True


def test_points_go_on_until_all_are_done_and_warnings_are_told_once(caplog) -> None:
    points, workers = trials([0] * 5), Scripted()
    spread = Spread(points, lambda: workers)
    with caplog.at_level(logging.WARNING):
        assert spread.advance(points, 4, lambda: None) is None
    assert [trial.done for trial in points] == [4, 4, 4, 1, 4]  # the fourth diverges
    assert caplog.messages == ["the same words"]
    spread.close()
    assert workers.closed


def test_points_of_a_worker_that_dies_are_dealt_to_others() -> None:
    points, workers = trials([0] * 5), Scripted(mortal=True)
    Spread(points, lambda: workers).advance(points, 4, lambda: None)
    assert workers.count == 1
    assert all(trial.done >= 4 for trial in points if not trial.diverged)


def test_a_signal_ends_it() -> None:
    points, workers = trials([0] * 5), Scripted()
    assert Spread(points, lambda: workers).advance(points, 9, lambda: None, lambda: 15) == 15
    assert workers.orders == 1


def test_workers_are_not_started_for_nothing() -> None:
    points = trials([4, 5])
    spread = Spread(points, lambda: 1 / 0)  # pyright: ignore
    assert spread.advance(points, 4, lambda: None) is None
    spread.close()
