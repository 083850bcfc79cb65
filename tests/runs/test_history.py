"""The history of a run: what a line says, what a file that was cut short says, and what the arrays hold."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedmime.errors import DataError
from fedmime.runs.history import METRICS, clean, columns, line, read_rows, rounds_to


def test_a_line_is_strict_json() -> None:
    text = line({"round": 3, "loss": float("nan"), "drift": float("-inf"), "abandoned": False, "update_norm": 0.1})
    assert text.endswith("\n")
    assert text.count("\n") == 1
    assert json.loads(text) == {"round": 3, "loss": None, "drift": None, "abandoned": False, "update_norm": 0.1}


@pytest.mark.parametrize("value", [1.5, -0.0, 7, True, "text", None])
def test_what_json_can_say_stays(value: object) -> None:
    assert clean(value) is value


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [{"round": t, "loss": 1 / (1 + t)} for t in range(3)]
    (tmp_path / METRICS).write_text("".join(map(line, rows)))
    assert read_rows(tmp_path) == read_rows(tmp_path / METRICS) == rows


def test_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    whole = line({"round": 0}) + line({"round": 1})
    for length in range(len(line({"round": 0})), len(whole)):
        (tmp_path / METRICS).write_text(whole[:length])
        assert read_rows(tmp_path) == [{"round": 0}]


@pytest.mark.parametrize("bad", ["[1]", "{}", '{"round": "1"}', "nonsense", ""])
def test_other_lines_are_refused_by_their_number(bad: str, tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text(f"{line({'round': 0})}{bad}\n")
    with pytest.raises(DataError, match=rf"{METRICS}': line 2 is no JSON object with a round$"):
        read_rows(tmp_path)


def test_a_directory_without_a_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"holds no {METRICS}; accepted is the directory of a run"):
        read_rows(tmp_path)


def test_columns_have_an_entry_for_every_round() -> None:
    found = columns([{"round": 0, "abandoned": True}, {"round": 1, "abandoned": False, "test_accuracy": 0.5}])
    assert list(found) == ["round", "abandoned", "test_accuracy"]
    assert found["round"].tolist() == [0, 1]
    assert found["abandoned"].dtype == bool
    np.testing.assert_array_equal(found["test_accuracy"], [np.nan, 0.5])


def test_text_gives_an_array_of_objects() -> None:
    found = columns([{"round": 0}, {"round": 1, "reason": "it diverged"}])
    assert found["reason"].tolist() == [None, "it diverged"]


def test_no_rows_give_no_columns() -> None:
    assert columns([]) == {}


@pytest.mark.parametrize(("target", "rounds"), [(0.2, 1), (0.5, 4), (0.7, 4), (0.71, None)])
def test_the_first_round_that_reaches_a_target_counts(target: float, rounds: int | None) -> None:
    """Rounds that were not measured are NaN, which reaches nothing."""
    history = {"round": np.arange(5), "test_accuracy": np.array([0.3, np.nan, 0.4, 0.7, 0.6])}
    assert rounds_to(history, target) == rounds


def test_a_metric_that_was_never_measured_is_never_reached() -> None:
    assert rounds_to({"round": np.arange(2)}, 0.1) is None
