"""`compare`: the same seeds and cohorts, one table, one report; what is done is not run again."""

import json
from pathlib import Path

import pytest

import fedmime as fm
from faults.program import said

COMMON = ["compare", "--task", "digits-logistic", "--cohort", "4", "--rounds", "3", "--quiet"]
METHODS = ["--methods", "scaffold", "slow=scaffold@0.01", "fedavg"]


def test_methods_meet_the_same_clients(tmp_path: Path, capsys) -> None:
    ended = said([*COMMON, "--out", tmp_path, *METHODS, "--json"], capsys)
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    assert [row["method"] for row in told["methods"]] == ["SCAFFOLD", "slow", "FedAvg"]
    assert Path(told["report"]) == tmp_path / "report.html"
    histories = {name: fm.Run.load(tmp_path / name).history for name in ("SCAFFOLD", "slow", "FedAvg")}
    for history in histories.values():
        assert history["examples"].tolist() == histories["FedAvg"]["examples"].tolist()
    assert histories["slow"]["loss"][-1] != histories["SCAFFOLD"]["loss"][-1]
    assert histories["SCAFFOLD"]["loss"][0] == pytest.approx(histories["FedAvg"]["loss"][0])  # no correction yet
    text = (tmp_path / "report.html").read_text()
    assert all(name in text for name in histories)

    again = said([*COMMON, "--out", tmp_path, *METHODS], capsys)
    assert again.code == 0
    assert all(name in again.out for name in histories)
    assert all(len(fm.Run.load(tmp_path / name).history["round"]) == 3 for name in histories)
    assert histories["slow"]["loss"].tolist() == fm.Run.load(tmp_path / "slow").history["loss"].tolist()


@pytest.mark.parametrize(
    ("methods", "told"),
    [
        (["mimelite"], "unknown algorithm 'mimelite'"),
        (["mime:adaam"], "unknown base 'adaam'"),
        (["mime@fast"], "must be a number, got 'fast'"),
        (["mime@-1"], "eta must be positive, got -1.0"),
        (["Mime"], "not of the form"),
        (["mime", "mime"], "'mime' is named twice"),
        (["mime@0.1", "mime@0.01"], "two are called 'MimeMom'"),
        (["a=mime", "a=fedavg"], "'a' is named twice"),
    ],
)
def test_wrong_methods_are_refused_before_any_runs(methods: list[str], told: str, tmp_path: Path, capsys) -> None:
    ended = said([*COMMON, "--out", tmp_path / "runs", "--methods", *methods], capsys)
    assert ended.code == 2
    assert told in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_dry_run_plans_every_method(tmp_path: Path, capsys) -> None:
    ended = said(
        [*COMMON, "--out", tmp_path / "runs", "--methods", "fedavg", "scaffold", "--dry-run", "--json"], capsys
    )
    plans = [json.loads(line) for line in ended.out.splitlines()]
    assert [told["plan"]["method"] for told in plans] == ["FedAvg", "SCAFFOLD"]
    assert [Path(told["out"]).name for told in plans] == ["FedAvg", "SCAFFOLD"]
    assert not (tmp_path / "runs").exists()


def test_methods_in_a_file(tmp_path: Path, capsys) -> None:
    file = tmp_path / "asked.yaml"
    file.write_text(f"task: digits-logistic\nmethods: [fedavg, 'wide=scaffold']\nout: {tmp_path / 'runs'}\n")
    ended = said(["compare", "--config", file, "--dry-run", "--json"], capsys)
    assert [Path(json.loads(line)["out"]).name for line in ended.out.splitlines()] == ["FedAvg", "wide"]
