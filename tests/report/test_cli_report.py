"""`fedmime report`."""

import json
from pathlib import Path

import pytest

from fedmime.cli.report import Report, run
from fedmime.errors import ConfigError, DataError
from report.written import write_run

UNMEASURED = ("drift", "gradient_norm", "deviation", "update_norm", "loss", "test_loss")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for label in ("FedAvg", "Mime"):
        write_run(root / "demo" / label, label, rounds=10, without=UNMEASURED)
    return root / "demo"


def test_one_directory_gets_its_report_and_figures(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Report((runs,), figures=True, target=0.3)) == 0
    said = capsys.readouterr().out.split()
    assert said[0] == str(runs / "report.html")
    assert all(Path(path).stat().st_size > 1000 for path in said)
    assert {Path(path).suffix for path in said[1:]} == {".png", ".pdf"}
    assert len(said) == 1 + 2 * 4
    assert "The target is a test accuracy of 30 %." in (runs / "report.html").read_text()


def test_several_directories_get_it_where_they_meet(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs.parent)
    (runs / "report.html").unlink(missing_ok=True)
    assert run(Report((Path("demo/FedAvg"), Path("demo/Mime")), json=True)) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == "demo/report.html"
    assert (runs / "report.html").is_file()
    assert [row["label"] for row in told["runs"]] == ["FedAvg", "Mime"]
    rows = [json.loads(line) for line in (runs / "Mime/metrics.jsonl").read_text().splitlines()]
    assert told["runs"][1]["final_accuracy"] == rows[-1]["test_accuracy"]
    assert told["runs"][1]["megabytes"] == rows[-1]["bytes_total"] / 1e6
    assert told["target"] == 0.75


def test_different_data_are_said_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label, task in (("FedAvg", "digits-logistic"), ("Mime", "handwriting-mlp")):
        write_run(tmp_path / label, label, rounds=3, without=UNMEASURED, task=task)
    assert run(Report((tmp_path,), json=True)) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)["warning"]
    assert told.startswith("These runs are of different tasks (FedAvg: digits-logistic; Mime: handwriting-mlp)")
    assert said.err == f"fedmime: {told}\n"


def test_what_cannot_be_reported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no run"):
        run(Report((tmp_path,)))
    with pytest.raises(ConfigError, match="at least one directory"):
        run(Report(()))
    with pytest.raises(ConfigError, match=r"target must lie in \[0, 1\], got 75\.0"):
        run(Report((tmp_path,), target=75.0))
