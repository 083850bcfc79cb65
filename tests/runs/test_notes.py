"""The log file of a run: it has warnings and notes, and takes neither the console nor the callers' settings away."""

import io
import logging
from pathlib import Path

import pytest

from fedmime.runs.notes import notes, warnings, written_to


def test_warnings_and_notes_are_written(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with written_to(path):
        warnings.warning("été")
        notes.info("round %d left out", 3)
    lines = path.read_text(encoding="utf-8").splitlines()
    told = [line.split(maxsplit=2)[2] for line in lines]
    assert told == ["WARNING fedmime: été", "INFO fedmime.run: round 3 left out"]


def test_nothing_is_written_afterwards(tmp_path: Path) -> None:
    path, handlers, level = tmp_path / "log.txt", (list(warnings.handlers), list(notes.handlers)), notes.level
    with pytest.raises(ZeroDivisionError), written_to(path):
        raise ZeroDivisionError
    notes.info("late")
    assert path.read_text() == ""
    assert (warnings.handlers, notes.handlers) == handlers
    assert notes.level == level


def test_a_second_run_appends(tmp_path: Path) -> None:
    for _ in range(2):
        with written_to(tmp_path / "log.txt"):
            notes.info("began")
    assert (tmp_path / "log.txt").read_text().count("began") == 2


def test_the_console_shows_warnings_and_no_notes(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    with written_to(tmp_path / "log.txt"):
        warnings.warning("look here")
        notes.info("nobody minds")
    shown = capsys.readouterr().err
    assert shown.count("look here") == 1
    assert "nobody minds" not in shown


def test_a_callers_handler_sees_warnings_only(tmp_path: Path, capsys, monkeypatch) -> None:
    """And it shows them instead of the console, not as well."""
    seen = io.StringIO()
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler(seen)])
    with written_to(tmp_path / "log.txt"):
        warnings.warning("look here")
        notes.info("nobody minds")
    assert seen.getvalue() == "look here\n"
    assert capsys.readouterr().err == ""
