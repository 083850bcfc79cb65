"""`train --track`: the run goes to a tracker, too, and `resume` goes on with the same tracked run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import wandb

from faults.program import said
from fedmime.cli.main import main
from trackers.small import written
from trackers.wandb_file import offline

ASKED = ["train", "--task", "digits-logistic", "--algorithm", "fedavg", "--cohort", "2", "--rounds", "2", "--quiet"]


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb.teardown()  # it reads the environment once
    settings = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    for name, value in (settings | {"WANDB_ERROR_REPORTING": "false"}).items():
        monkeypatch.setenv(name, value)


def test_train_and_resume_track_one_run(tmp_path: Path) -> None:
    out = tmp_path / "mine"
    assert main([*ASKED, "--out", str(out), "--track", "wandb", "--track-project", "mine"]) == 0
    assert main(["resume", str(out), "--rounds", "3", "--quiet"]) == 0
    ((_, segments),) = offline(tmp_path).items()
    steps = [pair for segment in segments for pair in segment]
    assert [step for step, _ in steps] == [1, 2, 3]
    assert dict(steps) == written(out)


def test_a_missing_package_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    ended = said([*ASKED, "--out", tmp_path / "run", "--track", "mlflow"], capsys)
    assert ended.code == 2
    assert "trackers.mlflow: mlflow is an extra: pip install 'fedmime[mlflow]'" in ended.err
    assert not (tmp_path / "run").exists()
