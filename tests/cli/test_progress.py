"""The progress of a run on the command line."""

import itertools
from types import SimpleNamespace

import pytest

from fedmime.cli import progress
from fedmime.cli.progress import Progress
from fedmime.trackers import pace


def test_what_is_left_is_told_after_the_first_round(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """A run that is resumed after 6 of 10 rounds: it compiles for an hour, then takes two seconds a round."""
    ends = itertools.count(3600.0, 2.0)
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: next(ends)))
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    with Progress("Mime", 10, 100, quiet=False) as shown:
        for t in (6, 7, 8):
            info = SimpleNamespace(round=t, loss=0.5, epsilon=float("nan"))
            shown.on_round(info, {})  # pyright: ignore[reportArgumentType]
    assert capsys.readouterr().err.splitlines() == [
        "Mime: round 7/10, loss 0.500, 700 B",
        "Mime: round 8/10, loss 0.500, 0.50 rounds/s, 4 s left, 800 B",
        "Mime: round 9/10, loss 0.500, 0.50 rounds/s, 2 s left, 900 B",
    ]
