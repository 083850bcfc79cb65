"""`list` and `doctor`: every name that other verbs take, and whether everything is here."""

import json
from typing import get_args

import pytest

from faults.program import said
from fedmime.experiments.setting import AlgorithmName, BaseName
from fedmime.experiments.tasks import TASKS

NAMES = {
    "tasks": set(TASKS),
    "recipes": set(TASKS),
    "algorithms": set(get_args(AlgorithmName)),
    "optimizers": set(get_args(BaseName)),
    "models": {"logistic", "mlp", "cnn", "char_lstm", "word_lstm", "from_flax", "from_equinox"},
    "datasets": {"digits", "handwriting", "synthetic", "emnist", "shakespeare", "stackoverflow"},
}


@pytest.mark.parametrize("what", NAMES)
def test_lists_are_whole_and_explained(what: str, capsys) -> None:
    told = json.loads(said(["list", what, "--json"], capsys).out)
    assert set(told) >= NAMES[what]
    assert all(told.values())
    shown = said(["list", what], capsys).out
    assert what in shown


def test_list_alone_shows_tasks(capsys) -> None:
    assert "digits-logistic" in said(["list"], capsys).out


def test_unknown_lists(capsys) -> None:
    assert said(["list", "nothing"], capsys).code == 2


def test_doctor_finds_everything_here(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FEDMIME_CACHE", str(tmp_path))
    ended = said(["doctor", "--json"], capsys)
    found = {row["check"]: row for row in json.loads(ended.out)}
    assert ended.code == 0
    assert all(row["ok"] for row in found.values())
    assert "4 rounds" in found["a run, saved and resumed"]["found"]


def test_doctor_says_what_is_wrong(capsys, monkeypatch, tmp_path) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("FEDMIME_CACHE", str(tmp_path / "file" / "cache"))
    ended = said(["doctor", "--json"], capsys)
    assert ended.code == 1
    assert [row["check"] for row in json.loads(ended.out) if not row["ok"]] == ["cache"]
