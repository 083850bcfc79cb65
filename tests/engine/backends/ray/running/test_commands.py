"""The verbs of the command line on Ray: what they print and record, and that runs go on there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedmime as fm
from faults.program import said
from fedmime.engine.backends.specification import Ray
from fedmime.report import html
from report.tables import table

DIGITS = ["--task", "digits-logistic", "--cohort", "4", "--rounds", "3", "--evaluate-every", "1", "--quiet"]
ON_RAY = ["--backend", "ray", "--workers", "2"]


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMIME_NO_COMPILATION_CACHE", "1")


def test_compare_and_resume(
    ray: Ray, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every method runs on the workers, the report tells what they did, and a run that goes on has the bits of one
    that was never broken off."""
    for figures in ("standard", "diagnostics"):  # they are those of any run
        monkeypatch.setattr(html, figures, lambda *_: [])
    ended = said(["compare", *DIGITS, *ON_RAY, "--methods", "fedavg", "slow=fedavg@0.01", "--out", tmp_path], capsys)
    assert ended.code == 0, ended.err
    for name in ("FedAvg", "slow"):
        assert fm.Run.load(tmp_path / name).history["workers"].tolist() == [2, 2, 2]
    told = dict(row for row in table((tmp_path / "report.html").read_text(), "provenance") if "Ray" in row[0])
    assert (told["Ray workers"], told["Ray workers lost"]) == ("2", "0")
    assert told["Ray, broadcast a round"].endswith(" MB")

    metrics = tmp_path / "FedAvg" / "metrics.jsonl"
    before = metrics.read_bytes()
    assert said(["resume", metrics.parent, "--rounds", "5", *ON_RAY, "--quiet"], capsys).code == 0
    train = ["train", "--algorithm", "fedavg", *DIGITS, *ON_RAY, "--rounds", "5", "--out", tmp_path / "whole"]
    assert said(train, capsys).code == 0
    assert metrics.read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert metrics.read_bytes().startswith(before)


def test_sweep(ray: Ray, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A point for itself is trained by all workers, with the figures of `train`."""
    sweep = ["sweep", *DIGITS, *ON_RAY, "--algorithm", "fedavg", "--grid", "eta=0.1", "--out", tmp_path / "sweep"]
    ended = said([*sweep, "--json"], capsys)
    assert ended.code == 0, ended.err
    (point,) = json.loads(ended.out)["points"]
    train = said(["train", "--algorithm", "fedavg", *DIGITS, "--out", tmp_path / "run", "--json"], capsys)
    assert (point["done"], point["accuracy"][-1]) == (3, json.loads(train.out)["accuracy"])


@pytest.mark.slow
def test_sweep_spreads_its_points(ray: Ray, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["sweep", *DIGITS, "--algorithm", "scaffold", "--grid", "eta=1,0.1,0.01", "--json"]
    on_ray = said([*grid, *ON_RAY, "--out", tmp_path / "ray"], capsys)
    assert on_ray.code == 0, on_ray.err
    here = said([*grid, "--workers", "1", "--out", tmp_path / "here"], capsys)
    ours, theirs = (json.loads(ended.out)["points"] for ended in (on_ray, here))
    assert [point["accuracy"] for point in ours] == [point["accuracy"] for point in theirs]
