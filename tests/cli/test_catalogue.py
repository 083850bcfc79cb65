"""`list`: every name that other verbs take."""

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
