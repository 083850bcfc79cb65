"""The conversation of a launcher with its ServerApp: rounds, stops, and errors as they were raised."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedmime import errors
from fedmime.deploy.flower.session import Report, Session
from fedmime.errors import ClusterError, FedmimeError


def talk(path: Path, play: Callable[[Report], None], plan: Any = None) -> tuple[Session, threading.Thread]:
    session = Session(path, plan or {})

    thread = threading.Thread(target=lambda: play(Report(path)))
    thread.start()
    return session, thread


def nothing() -> None:
    pass


def test_rounds_are_told_and_the_plan_arrives(tmp_path: Path) -> None:
    seen: list[Any] = []

    def play(report: Report) -> None:
        seen.append(report.plan)
        info: Any = SimpleNamespace(round=0, loss=0.5, epsilon=float("nan"))
        with report:
            report.on_round(info, {"test_accuracy": 0.25})

    session, thread = talk(tmp_path / "s", play, {"rounds": 3})
    told = [event for event in session.events(20, nothing) if event is not None]
    thread.join()
    session.close()
    assert seen == [{"rounds": 3}]
    assert [(e["round"], e["loss"], e["measured"]) for e in told] == [(0, 0.5, {"test_accuracy": 0.25})]


@pytest.mark.parametrize(
    "kind", [errors.ConfigError, errors.DataError, errors.Diverged, errors.LockError, ClusterError]
)
def test_errors_arrive_as_what_they_are(kind: type[FedmimeError], tmp_path: Path) -> None:
    def play(report: Report) -> None:
        with pytest.raises(kind), report:
            raise kind("in one line")

    session, thread = talk(tmp_path / "s", play)
    with pytest.raises(kind, match="in one line") as found:
        list(session.events(20, nothing))
    thread.join()
    session.close()
    assert found.value.exit_code == kind.exit_code


def test_other_errors_are_named(tmp_path: Path) -> None:
    def play(report: Report) -> None:
        with pytest.raises(ZeroDivisionError), report:
            raise ZeroDivisionError("of course")

    session, thread = talk(tmp_path / "s", play)
    with pytest.raises(FedmimeError, match="ZeroDivisionError: of course"):
        list(session.events(20, nothing))
    thread.join()
    session.close()


def test_a_signal_stops_the_other_end(tmp_path: Path) -> None:
    begun = threading.Event()

    def play(report: Report) -> None:
        assert report.stop() is None
        begun.set()
        while report.stop() is None:
            pass
        with pytest.raises(errors.Stopped), report:
            raise errors.Stopped("saved", report.stop() or 0)

    session, thread = talk(tmp_path / "s", play)
    stopping = (begun.is_set() and session.stop(signal.SIGINT) for _ in session.events(20, nothing))
    with pytest.raises(errors.Stopped, match="saved") as found:
        list(stopping)
    thread.join()
    session.close()
    assert found.value.exit_code == 130


def test_a_launcher_that_is_gone_stops_it_too(tmp_path: Path) -> None:
    session = Session(tmp_path / "s", {})
    accepting = threading.Thread(target=lambda: next(session.events(20, nothing)))
    accepting.start()
    report = Report(tmp_path / "s")
    accepting.join()
    assert report.stop() is None
    session.close()
    assert report.stop() == signal.SIGTERM
    report._connection.close()


def test_one_that_never_begins_and_one_that_vanishes(tmp_path: Path) -> None:
    session = Session(tmp_path / "s", {})
    with pytest.raises(ClusterError, match="has not begun after 0 s"):
        list(session.events(0.5, nothing))
    events = session.events(20, nothing)
    assert next(events) is None
    report = Report.__new__(Report)
    connecting = threading.Thread(target=report.__init__, args=(tmp_path / "s",))
    connecting.start()
    assert next(events) is None
    connecting.join()
    report._connection.close()
    with pytest.raises(ClusterError, match="has ended suddenly"):
        list(events)
    session.close()
