"""What W&B has of a run is what its history has, once, also if the run was broken off."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import fedmime as fm
from trackers.small import ROUNDS, break_off, simulate, written
from trackers.wandb_file import config, offline


def _tracker(directory: Path, **options: Any) -> fm.trackers.Callback:
    return fm.trackers.wandb("mime", mode="offline", dir=directory, settings={"silent": True}, **options)


@pytest.fixture(autouse=True)
def _private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def test_numbers_are_those_of_the_history(tmp_path: Path) -> None:
    simulate(tmp_path / "run", _tracker(tmp_path))
    ((run, (segment,)),) = offline(tmp_path).items()
    assert dict(segment) == written(tmp_path / "run")
    assert [step for step, _ in segment] == list(range(1, ROUNDS + 1))
    (file,) = tmp_path.glob(f"wandb/offline-run-*/run-{run}.wandb")
    assert config(file)["algorithm"]["eta"] == 0.1


def test_a_run_that_goes_on_is_the_same_run_and_has_every_step_once(tmp_path: Path) -> None:
    break_off(tmp_path / "run", _tracker(tmp_path))
    simulate(tmp_path / "run", _tracker(tmp_path))
    ((_, segments),) = offline(tmp_path).items()
    assert [len(segment) for segment in segments] == [3, ROUNDS - 3]
    steps = [pair for segment in segments for pair in segment]
    assert len(dict(steps)) == len(steps)
    assert dict(steps) == written(tmp_path / "run")


def test_runs_without_a_directory_are_tracked_apart(tmp_path: Path) -> None:
    tracker = _tracker(tmp_path, tags=["a"], group="b")
    one, other = (simulate(None, tracker, rounds=rounds) for rounds in (1, 2))
    lengths = sorted(len(segment) for segments in offline(tmp_path).values() for segment in segments)
    assert lengths == [len(one.history["round"]), len(other.history["round"])]


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(fm.ConfigError, match=r"^trackers.wandb: wandb is an extra: pip install 'fedmime\[wandb\]'$"):
        fm.trackers.wandb()
