"""The verbs sweep, tune and reproduce."""

import json
import shutil

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


def test_dry_run_tells_the_cost(capsys, tmp_path) -> None:
    assert main(["sweep", *SMALL, "--rounds", "64", "--halving", "--dry-run"]) == 0
    assert capsys.readouterr().out == "9 points, 4.5 full runs\n"
    assert main(["sweep", *SMALL, "--grid", "eta=1,0.1", "eta_server=1,0.1", "--dry-run"]) == 0
    assert capsys.readouterr().out == "4 points, 4 full runs\n"
    assert main(["tune", *SMALL, "--clients", "10", "--check", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("9 rates, 4.")
    assert told.endswith(" runs of 20 central rounds, and 9 federated runs to check\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--cohort", "51"], 2, "cohort=51 exceeds"),
        (["--participation.drop-out", "1.1"], 2, "drop_out must"),
        (["--task", "emnist-logistic", "--data-dir", "none"], 3, "none"),
        (["--out", "file"], 74, "Not a directory"),
    ],
)
@pytest.mark.parametrize("verb", ["sweep", "tune"])
def test_dry_run_refuses_what_a_run_refuses(
    verb: str, words: list[str], code: int, told: str, capsys, tmp_path
) -> None:
    (tmp_path / "file").touch()
    for dry in (["--dry-run"], []):
        assert main([verb, *SMALL, "--rounds", "1", *words, *dry]) == code
        said = capsys.readouterr()
        assert told in said.err
        assert (said.out, said.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04"])
def test_damaged_points_are_trained_again(content: bytes, capsys, tmp_path) -> None:
    words = ["sweep", *SMALL, "--rounds", "1", "--grid", "eta=1,0.1", "--json", "--out", "found"]
    assert main(words) == 0
    whole = capsys.readouterr().out
    files = sorted((tmp_path / "found" / "cache").iterdir())
    files[0].write_bytes(content)
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.out == whole
    assert said.err.count("is damaged; the point is trained again") == 1
    shutil.copy(files[0], files[1])  # of another point
    assert main(words) == 0
    assert capsys.readouterr().out == whole


@pytest.mark.parametrize(
    "words", [["--light", "--heavy"], ["--grid", "eta"], ["--grid", "cohort=1,2"], ["--workers", "0"]]
)
def test_wrong_arguments_exit_with_2(words: list[str], capsys) -> None:
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
