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
        (["fedavg@0.1,fast"], "must be a number, got 'fast'"),
        (["fedavg@0.1,-1"], "eta_server must be positive, got -1.0"),
        (["fedavg@0.1,1,1"], "not of the form"),
        (["mime@-1"], "eta must be positive, got -1.0"),
        (["Mime"], "unknown algorithm 'Mime'"),
        (["mime:sgd:adam"], "not of the form"),
        (["mimelite:adam"], "unknown algorithm 'mimelite'"),
        (["nowhere:swift"], "algorithm: there is no module 'nowhere'"),
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


def test_several_seeds_are_told_as_means(tmp_path: Path, capsys) -> None:
    words = [*COMMON, "--out", tmp_path, "--methods", "fedavg@0.5", "wide=fedavg:momentum@0.5,10", "--seeds", "2"]
    words += ["--seed", "3", "--target", "0.2", "--evaluate-every", "1"]
    told = json.loads(said([*words, "--json"], capsys).out)
    assert [(row["method"], row["seed"]) for row in told["methods"]] == [
        ("FedAvg", 3), ("FedAvg", 4), ("wide", 3), ("wide", 4)
    ]  # fmt: skip
    assert sorted(path.parent.name for path in tmp_path.glob("*/metrics.jsonl")) == [
        "FedAvg-seed3", "FedAvg-seed4", "wide-seed3", "wide-seed4"
    ]  # fmt: skip
    for mean in told["means"]:
        reached = [row["rounds_to_target"] for row in told["methods"] if row["method"] == mean["label"]]
        assert mean["rounds_to_target"] == reached
        assert mean["mean_rounds_to_target"] == sum(reached) / 2
    assert [mean["server_rate"] for mean in told["means"]] == [None, 10.0]
    assert "mean over seeds" in (tmp_path / "report.html").read_text()
    shown = said(words, capsys).out
    assert all(word in shown for word in ("rounds to", "0.5 (×10)", "wide"))
    wrong = said([*COMMON, "--seeds", "0"], capsys)
    assert (wrong.code, wrong.err) == (2, "fedmime: compare: seeds must be a whole number of at least 1, got 0\n")


def test_rates_are_tried_and_nothing_is_recorded(tmp_path: Path, capsys) -> None:
    words = [*COMMON, "--out", tmp_path / "runs", "--methods", "fedavg", "--target", "0.3", "--rates", "0.001", "1"]
    ended = said([*words, "--json"], capsys)
    found = json.loads(ended.out)["FedAvg"]
    assert found["best"] == 1
    assert found["rates"] == [0.001, 1]
    assert "best" in said(words, capsys).out
    assert not (tmp_path / "runs").exists()
