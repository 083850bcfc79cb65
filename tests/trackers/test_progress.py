"""The progress line: rewritten on terminals and in notebooks, rare lines elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

import fedmime as fm
from trackers.small import ROUNDS, simulate


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
