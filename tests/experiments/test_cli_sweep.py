"""The verbs sweep, tune and reproduce."""

import json

import pytest

from fedmime.cli.main import main

SMALL = ["--task", "digits-logistic", "--algorithm", "fedavg", "--rounds", "4", "--cohort", "5", "--quiet"]


@pytest.fixture(autouse=True)
def own_directory(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDMIME_NO_COMPILATION_CACHE", "1")


def test_sweep(capsys, tmp_path) -> None:
    assert main(["sweep", *SMALL, "--grid", "eta=1,0.1", "--json", "--out", "found"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["grid"] == {"eta": [1.0, 0.1]}
    assert {"sweep.json", "sweep.csv", "sweep.png", "sweep.html", "cache"} <= {
        p.name for p in (tmp_path / "found").iterdir()
    }
    assert main(["sweep", *SMALL, "--grid", "eta=1,0.1", "--out", "found"]) == 0
    told = capsys.readouterr().out
    assert "Best: eta 1" in told
    assert "lies on the edge of the grid" in told


def test_dry_run_tells_the_cost(capsys) -> None:
    assert main(["sweep", "--rounds", "64", "--halving", "--dry-run"]) == 0
    assert capsys.readouterr().out == "9 points, 4.5 full runs\n"
    assert main(["sweep", "--heavy", "--dry-run"]) == 0
    assert capsys.readouterr().out == "567 points, 567 full runs\n"


@pytest.mark.parametrize("words", [["--light", "--heavy"], ["--grid", "eta"], ["--grid", "cohort=1,2"]])
def test_wrong_grids_exit_with_2(words: list[str], capsys) -> None:
    assert main(["sweep", *SMALL, *words]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_tune(capsys, tmp_path) -> None:
    words = ["--clients", "10", "--central-rounds", "4", "--check", "--out", "tuned"]
    assert main(["tune", *SMALL, *words]) == 0
    assert "The federated optimum is eta" in capsys.readouterr().out
    assert json.loads((tmp_path / "tuned" / "tune.json").read_text())["federated"]["label"] == "FedAvg"


def test_reproduce(capsys, tmp_path) -> None:
    assert main(["reproduce", "communication", "--scale", "smoke", "--quiet"]) == 0
    assert "MimeLiteAdam" in capsys.readouterr().out
    assert (tmp_path / "runs/reproduce/communication-smoke/data.json").is_file()
