"""The verbs of `fedmime data`: what they print and what they give back."""

import json
from pathlib import Path

import pytest
import tyro

from data.published import images, write_hdf5
from fedmime.cli import data
from fedmime.data import from_store
from fedmime.errors import ConfigError, DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_hdf5(tmp_path / "fed_emnist_train.h5", images({f"c{i}": i for i in range(6)}, 3))
    write_hdf5(tmp_path / "fed_emnist_test.h5", images({"a": 3}, 4))
    return tmp_path


def call(*arguments: str) -> int:
    return data.run(tyro.cli(data.Data, args=list(arguments)))  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("list", "--data-dir", str(folder)) == 0
    assert "handwriting" in capsys.readouterr().out
    assert call("list", "--data-dir", str(folder), "--json") == 0
    told = {row["name"]: row["files"] for row in json.loads(capsys.readouterr().out)["datasets"]}
    assert told["emnist"] == "fed_emnist_train.h5, fed_emnist_test.h5"
    assert told["shakespeare"] == "not here"


def test_verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", "emnist", "--data-dir", str(folder), "--quiet") == 0
    out = capsys.readouterr().out
    assert "1 clients have no examples" in out
    assert "6 clients, 15 examples, 1 empty: sound" in out
    assert call("verify", str(folder / "fed_emnist_train.h5"), "--quiet", "--classes", "3", "--json") == 3
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert "accepted are 0 to 2" in report["errors"][0]
    assert "is not pinned" in report["notes"][-1]


def test_convert(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("convert", "emnist", "--data-dir", str(folder), "--workers", "1", "--quiet") == 0
    assert capsys.readouterr().out.strip().endswith("emnist.store")
    assert from_store(folder / "emnist.store").sizes.sum() == 15


def test_stats(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("stats", "emnist", "--data-dir", str(folder), "--plot", str(folder / "p.png")) == 0
    out = capsys.readouterr().out
    assert "label skew" in out
    assert (folder / "p.png").read_bytes().startswith(b"\x89PNG")
    assert call("stats", "digits", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["clients"], told["examples"]) == (50, 1438)
    assert sum(told["histogram"]) == 50
    assert sum(told["labels"]["counts"]) == 1438
    assert told["labels"]["distance"] > 1.5 * told["labels"]["expected"]


@pytest.mark.parametrize("words", ["stats digits --most -1", "verify digits --classes 0", "convert digits --workers 0"])
def test_counts_that_make_no_sense(words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a positive integer, got"):
        call(*words.split(), "--data-dir", str(tmp_path), "--quiet")


def test_fetch_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmime.data.download.time.sleep", lambda seconds: None)
    with pytest.raises(DataError, match="cannot fetch"):
        call("fetch", "emnist", "--data-dir", str(tmp_path), "--base-url", "http://127.0.0.1:9", "--quiet")
