"""Callbacks hear every row once, whatever happens to the run, and nothing that happens to them reaches it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmime as fm
from engine.setting import a, same
from fedmime.trackers import Callback, Mark, Started
from fedmime.trackers.callback import numbers
from trackers.small import EVERY, POPULATION, PROBLEM, ROUNDS, break_off, simulate, written


class Heard(Callback):
    """Writes down what it hears, in a list that outlives it, and fails where it is told to."""

    name = "heard"

    def __init__(self, record: list[Any], fails: tuple[str, ...] = ()) -> None:
        self.record, self.fails = record, list(fails)
        self.starts: list[Started] = []
        self.ends: list[tuple[str, str | None]] = []

    def _meet(self, stage: str) -> None:
        if stage in self.fails:
            self.fails.remove(stage)
            raise OSError(f"no network in {stage}\nand more")

    def start(self, run: Started) -> Mark | None:
        self.starts.append(run)
        self._meet("start")
        return Mark("abc", 0 if run.mark is None else run.mark.rounds)

    def rounds(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._meet(f"round {rows[-1]['round'] + 1}")
        self.record += [dict(row) for row in rows]

    def end(self, state: str, reason: str | None) -> None:
        self._meet("end")
        self.ends.append((state, reason))


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def _is_history(record: list[Any], run: fm.Run) -> None:
    assert [row["round"] for row in record] == list(range(ROUNDS))
    np.testing.assert_array_equal([row["loss"] for row in record], run.history["loss"])


def test_every_row_is_heard_once() -> None:
    heard = Heard([])
    run = simulate(None, heard)
    _is_history(heard.record, run)
    (started,) = heard.starts
    assert (started.name, started.rounds, started.mark) == ("Mime", ROUNDS, None)
    assert started.config["algorithm"]["eta"] == 0.1
    assert heard.ends == [("done", None)]


def test_a_run_that_goes_on_tells_what_is_new(tmp_path: Path) -> None:
    record: list[Any] = []
    first, second = Heard(record), Heard(record)
    break_off(tmp_path / "mine", first)
    assert first.ends == [("failed", "RuntimeError: broken off")]
    assert len(record) == 3 > EVERY  # round 3 was told and is computed again
    _is_history(record, simulate(tmp_path / "mine", second))
    assert (second.starts[0].name, second.starts[0].mark) == ("mine", Mark("abc", 3))


def test_who_comes_later_hears_of_all_rounds(tmp_path: Path) -> None:
    break_off(tmp_path)
    heard = Heard([])
    _is_history(heard.record, simulate(tmp_path, heard))


def test_a_fresh_run_is_another(tmp_path: Path) -> None:
    simulate(tmp_path, Heard([]))
    heard = Heard([])
    _is_history(heard.record, simulate(tmp_path, heard, fresh=True))
    assert heard.starts[0].mark is None


def test_two_of_a_name_have_marks_of_their_own(tmp_path: Path) -> None:
    simulate(tmp_path, Heard([]), Heard([]))
    assert sorted(path.name for path in (tmp_path / "tracked").iterdir()) == ["heard-2.json", "heard.json"]


@pytest.mark.parametrize("fails", [("start",), ("round 1",), ("round 3",)])
def test_a_failure_is_said_once_and_made_up_for(fails: tuple[str, ...], tmp_path: Path, caplog) -> None:
    heard = Heard([], fails)
    plain, run = simulate(None), simulate(tmp_path, heard)
    assert same(run.params, plain.params)
    _is_history(heard.record, run)
    assert heard.ends == [("done", None)]
    (said,) = _warnings(caplog)
    after = 0 if fails == ("start",) else int(fails[0][-1])
    assert said.startswith(f"heard failed after round {after} (OSError: no network in {fails[0]}); the run goes on")
    assert "\n" not in said


@pytest.mark.parametrize(("fails", "lacks"), [(("end",), 0), (("round 3", f"round {ROUNDS}"), 3), (("start",) * 2, 5)])
def test_a_failure_to_the_end_says_what_is_missing(fails: tuple[str, ...], lacks: int, tmp_path: Path, caplog) -> None:
    record: list[Any] = []
    simulate(tmp_path, Heard(record, fails))
    assert _warnings(caplog)[-1].endswith(f"; it lacks {lacks} of {ROUNDS} rounds")
    _is_history(record, simulate(tmp_path, Heard(record)))  # the same call sends it


def test_a_damaged_mark_starts_anew(tmp_path: Path) -> None:
    simulate(tmp_path, Heard([]))
    (tmp_path / "tracked" / "heard.json").write_text('{"id": "a')
    heard = Heard([])
    _is_history(heard.record, simulate(tmp_path, heard))


def test_the_row_of_a_round_that_diverges_is_heard(tmp_path: Path) -> None:
    heard = Heard([])
    with pytest.raises(fm.Diverged):
        simulate(tmp_path, heard, algorithm=a.fedavg(1e200), gate=fm.Gate(patience=1))
    assert [row["round"] for row in heard.record] == [0]
    assert heard.ends == [("failed", json.loads((tmp_path / "status.json").read_text())["reason"])]


def test_a_signal_is_a_preemption(tmp_path: Path) -> None:
    heard = Heard([])
    with pytest.raises(fm.Stopped):
        simulate(tmp_path, heard, stop=lambda: 15)
    assert [state for state, _ in heard.ends] == ["preempted"]
    assert len(heard.record) == 1


def test_a_dry_run_tells_nobody(tmp_path: Path) -> None:
    heard = Heard([])
    simulate(tmp_path, heard, dry_run=True)
    assert not heard.starts


@pytest.mark.parametrize("callbacks", [print, [print], "wandb"])
def test_other_things_are_refused(callbacks: Any) -> None:
    with pytest.raises(fm.ConfigError, match=r"simulate: callbacks must .*fm\.trackers"):
        fm.simulate(a.fedavg(0.1), PROBLEM, POPULATION, 1, 1, callbacks=callbacks)


def test_rows_are_those_of_the_file(tmp_path: Path) -> None:
    heard = Heard([])
    simulate(tmp_path, heard)
    told = {row["round"] + 1: numbers(row) for row in heard.record}
    assert told == written(tmp_path)
    assert any("test_accuracy" not in row for row in told.values())
