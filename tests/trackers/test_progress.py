"""The progress line: rewritten on terminals and in notebooks, rare lines elsewhere."""

from __future__ import annotations

import io
import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedmime as fm
from fedmime.trackers import pace
from trackers.small import ROUNDS, break_off, simulate


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", _Terminal())
    run = simulate(None, fm.trackers.progress())
    text = sys.stdout.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert text.endswith("rounds/s\n")
    assert text.count("\n") == 1
    last = text.split("\r")[-1]
    assert last.startswith(f"round {ROUNDS}/{ROUNDS}, test accuracy {run.history['test_accuracy'][-1]:.3f}, ")
    assert f", loss {run.history['loss'][-1]:.3f}, " in last


def test_a_file_gets_the_first_and_the_last_round(capsys: pytest.CaptureFixture[str]) -> None:
    simulate(None, fm.trackers.progress())
    told = capsys.readouterr().out
    assert [line.split(",")[0] for line in told.splitlines()] == [f"round 1/{ROUNDS}", f"round {ROUNDS}/{ROUNDS}"]
    assert "\r" not in told


def test_speed_is_that_of_rounds_after_the_first_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run: its second process compiles until its clock shows 1000, then takes half a second a round."""
    break_off(tmp_path / "run", fm.trackers.progress())
    capsys.readouterr()
    ends = itertools.count(1000.0, 0.5)
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: next(ends)))
    monkeypatch.setattr(sys.modules["fedmime.trackers.progress"], "_APPENDED", 0.0)
    simulate(tmp_path / "run", fm.trackers.progress())
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"round {n}/{ROUNDS}" for n in (2, 3, 4, 5)]
    assert ["rounds/s" in line for line in lines] == [False, False, True, True]
    assert [line.endswith(", 2.0 rounds/s") for line in lines[2:]] == [True, True]
