"""The speed of rounds: that of the first, which compiles, does not count."""

from types import SimpleNamespace

import pytest

from fedmime.trackers import pace


def test_the_first_round_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = iter([1000.0, 1000.5, 1002.0, 1002.0])
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: next(ends)))
    found = pace.Pace()
    assert [found.after_round() for _ in range(4)] == [None, 2.0, 1.0, 1.5]


def test_rounds_without_any_time_between_them_have_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: 1.0))
    found = pace.Pace()
    assert [found.after_round() for _ in range(2)] == [None, None]
