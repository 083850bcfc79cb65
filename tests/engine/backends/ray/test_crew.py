"""Who holds the workers of a back end, and how their errors are told; tests of workers themselves are in `running`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedmime.engine.backends.ray import crew
from fedmime.engine.backends.ray.seat import Options

TWO, THREE = Options(2, None, 1, 60.0), Options(3, None, 1, 60.0)


class Idle:
    """A crew without workers."""

    def __init__(self, options: Options) -> None:
        self.options, self.closed = options, 0

    def close(self) -> None:
        self.closed += 1


def test_a_crew_is_shared_by_all_who_hold_it_and_ends_with_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "Crew", Idle)
    crew.hold(TWO)
    crew.hold(TWO)
    crew.hold(THREE)
    first, other = crew.started(TWO), crew.started(THREE)
    assert crew.started(TWO) is first
    assert other is not first
    crew.release(TWO)
    assert first.closed == 0
    crew.release(TWO)
    assert (first.closed, other.closed) == (1, 0)
    crew.hold(TWO)
    assert crew.started(TWO) is not first
    crew.release(TWO)
    crew.release(THREE)
    assert other.closed == 1


def test_a_crew_that_was_never_started_is_not_started_to_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "Crew", lambda options: pytest.fail("started"))
    crew.hold(TWO)
    crew.release(TWO)


class TaskError(Exception):
    """As Ray raises it: with what was raised on the worker as its cause."""

    def __init__(self, cause: object) -> None:
        super().__init__("ray::Worker.answer()\n  File 'loss.py'\nArithmeticError: no such number\n")
        self.cause = cause


def test_an_error_of_a_worker_is_raised_as_it_was_with_the_workers_traceback() -> None:
    raised = ArithmeticError("no such number")
    assert crew.cause_of(TaskError(raised)) is raised
    assert "File 'loss.py'" in raised.__notes__[0]
    unknown = TaskError(None)
    assert crew.cause_of(unknown) is unknown


@pytest.mark.parametrize(("words", "first"), [("\n a worker died \nsecond line", "a worker died "), ("one", "one")])
def test_only_the_first_line_is_told(words: str, first: str) -> None:
    assert crew.first_line(RuntimeError(words)) == first


def test_a_head_that_does_not_answer_is_asked_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, waits = [False, False, True, False, False, False], []
    monkeypatch.setattr(crew, "CLUSTER", SimpleNamespace(alive=lambda: answers.pop(0)))
    monkeypatch.setattr(crew.time, "sleep", waits.append)
    nobody = crew.Crew.__new__(crew.Crew)
    nobody.check_head()
    assert waits == [crew.LOOK] * 2
    with pytest.raises(crew.ClusterError, match=r"the head of the cluster does not answer any more; .*resume"):
        nobody.check_head()
    assert not answers
