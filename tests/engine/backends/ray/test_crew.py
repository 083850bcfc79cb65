"""Who holds the workers of a back end, and how their errors are told; tests of workers themselves are in `running`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import fedmime as fm
from fedmime.engine.backends.ray import crew
from fedmime.engine.backends.ray.handshake import Facts, Subject
from fedmime.engine.backends.ray.seat import Options
from fedmime.engine.backends.ray.worker import Place, WorkerStatus

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


class Machine(NamedTuple):
    """What a worker there says to its first call and to a run; errors are raised, and None is never said."""

    hello: Any
    build: Any = None


class Call:
    """A method of an actor, and Ray's reference to its answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def remote(self, *_: object) -> Call:
        return Call(self.answer)


@pytest.fixture
def hired(monkeypatch: pytest.MonkeyPatch) -> Callable[..., crew.Crew]:
    """A function that makes a crew on given machines, without processes; the last machine has all further workers."""
    ray = pytest.importorskip("ray", reason="the extra fedmime[ray] is not installed")

    def wait(refs: Sequence[Call], num_returns: int, timeout: float) -> tuple[list[Call], list[Call]]:
        said = [ref for ref in refs if ref.answer is not None][:num_returns]
        return said, [ref for ref in refs if ref not in said]

    def get(ref: Call) -> Any:
        if isinstance(ref.answer, Exception):
            raise ref.answer
        return ref.answer

    def hired(*machines: Machine, deadline: float = 60.0) -> crew.Crew:
        left = list(machines)

        def actor() -> SimpleNamespace:
            machine = left.pop(0) if len(left) > 1 else left[0]
            return SimpleNamespace(hello=Call(machine.hello), build=Call(machine.build))

        started = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=actor))
        monkeypatch.setattr(ray, "remote", lambda _: started)
        return crew.Crew(Options(len(machines), None, 1, deadline))

    for name, fake in (("wait", wait), ("get", get), ("kill", lambda _: None), ("cluster_resources", dict)):
        monkeypatch.setattr(ray, name, fake)
    nothing = lambda *_: None
    monkeypatch.setattr(crew, "CLUSTER", SimpleNamespace(alive=lambda: True, take=nothing, release=nothing))
    return hired


SUBJECT = Subject("problem", None, "configuration", {})
HERE = WorkerStatus(Facts.here(), Place("a", 1))
OTHER = HERE._replace(facts=HERE.facts._replace(jaxlib="0.0.1"), place=Place("b", 2))
GOOD = Machine(HERE, HERE._replace(subject=SUBJECT))


def _broken(raised: Exception) -> Exception:
    """As Ray raises it for a worker's call."""
    from ray.exceptions import RayTaskError

    return RayTaskError("build", "the worker's traceback", raised, ip="10.0.0.2")


def _dead(words: str) -> Exception:
    from ray.exceptions import RayError

    return RayError(words)


MISSING = f"it died because of an {crew._CREATION}\n  File 'x.py'\nModuleNotFoundError: No module named 'fedmime'\n"
BAD: dict[str, tuple[Callable[[], Machine], str]] = {
    "another version": (
        lambda: Machine(OTHER, OTHER),
        r"ray: worker \d \(process 2 on b\) has jaxlib '0.0.1', the driver has '.*'; install the same",
    ),
    "without the store": (lambda: GOOD._replace(build=_broken(fm.DataError("no store at '/data'"))), "no store at"),
    "without fedmime": (
        lambda: Machine(_dead(MISSING)),
        "ray: no worker starts: ModuleNotFoundError: No module named 'fedmime'; has its machine the fedmime of",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_machine_that_would_compute_something_else_is_refused(hired: Any, bad: str) -> None:
    machine, words = BAD[bad]
    with pytest.raises(fm.FedmimeError, match=words):
        hired(machine(), GOOD).begin("run", None, SUBJECT)


@pytest.mark.parametrize("bad", BAD)
def test_such_a_machine_is_left_out_when_another_worker_is_ready(
    hired: Any, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It joins with its worker's first word, or later; it is told once, and is not asked for the next run, either."""
    machine, words = BAD[bad]
    ours = hired(GOOD, machine())
    ours.begin("run", None, SUBJECT)
    ours.admit(0)
    ours.begin("next", None, SUBJECT)
    assert ours.ready == ours.seats[:1]
    assert [seat.alive for seat in ours.seats] == [True, False]
    assert not ours.lost
    (told,) = caplog.messages
    assert re.match(rf"{words}.*; the run goes on without worker 1", told)


def test_workers_that_die_before_they_answer_are_replaced_some_times(hired: Any) -> None:
    with pytest.raises(fm.ClusterError, match="ray: no worker starts: the machine has no memory; has its machine"):
        hired(Machine(_dead("it died\nthe machine has no memory\n"))).await_one()
    again = hired(Machine(_dead("it died")), Machine(_dead("it died")), GOOD)
    again.begin("run", None, SUBJECT)
    assert len(again.ready) == 3


def test_nobody_answers_in_time(hired: Any) -> None:
    words = r"^ray: no worker has answered within 0.1 seconds; has the cluster 1 free cores\? what was saved .* resume"
    with pytest.raises(fm.ClusterError, match=words):
        hired(Machine(None), deadline=0.1).await_one()
