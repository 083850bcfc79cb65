"""Warm starts: a run begins with the model of another, and goes on exactly without it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from faults.program import said
from fedmime.cli.main import main
from fedmime.experiments import sweep_rounds, warm_start
from fedmime.experiments.setting import Setting
from fedmime.experiments.sweep import sweep
from fedmime.runs.directory import INITIAL

TASK = ["--task", "digits-logistic", "--algorithm", "fedavg", "--cohort", "4", "--evaluate-every", "1", "--quiet"]


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMIME_NO_COMPILATION_CACHE", "1")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, whose last model the others start from."""
    path = tmp_path_factory.mktemp("first") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMIME_NO_COMPILATION_CACHE", "1")
        assert main(["train", *TASK, "--rounds", "3", "--out", str(path)]) == 0
    return path


def _warm(source: Path, out: Path, rounds: int = 3) -> list[str]:
    return ["train", *TASK, "--init", str(source), "--rounds", str(rounds), "--out", str(out)]


def _accuracies(run: Path) -> list[float]:
    return [json.loads(line).get("test_accuracy") for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_starts_from_the_last_model(first: Path, tmp_path: Path) -> None:
    assert main([*_warm(first, tmp_path / "out"), "--eta", "1e-12"]) == 0
    before, after = (load_file(run / "model.safetensors") for run in (first, tmp_path / "out"))
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, atol=1e-6)
    assert _accuracies(tmp_path / "out")[-1] == _accuracies(first)[-1]
    config = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert config["init"] == str(first)
    assert json.loads((tmp_path / "out" / "identity.json").read_text())["initial"] is not None


def test_a_run_may_start_from_the_best_model(first: Path, tmp_path: Path) -> None:
    assert main(_warm(first / "best.safetensors", tmp_path / "out")) == 0
    best, start = (load_file(file) for file in (first / "best.safetensors", tmp_path / "out" / INITIAL))
    assert all(np.array_equal(best[name], start[name]) for name in best)


@pytest.mark.parametrize("becomes", ["removed", "another run"])
def test_it_goes_on_exactly_whatever_becomes_of_the_first(becomes: str, first: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(first, source)
    assert main(_warm(source, tmp_path / "whole", rounds=5)) == 0
    assert main(_warm(source, tmp_path / "parts", rounds=2)) == 0
    shutil.rmtree(source)
    if becomes == "another run":
        assert main(["train", *TASK, "--rounds", "1", "--out", str(source)]) == 0
    assert main(["resume", str(tmp_path / "parts"), "--rounds", "5", "--quiet"]) == 0
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    assert main(["eval", str(tmp_path / "parts"), "--json"]) == 0


def test_what_is_needed_and_gone_is_named(first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(first, source)
    assert main(_warm(source, out)) == 0
    shutil.rmtree(source)
    (out / INITIAL).unlink()
    told = f"fedmime: init: {str(out)!r} starts from {str(source)!r}, which is gone, and holds no {INITIAL}\n"
    assert said(["resume", out, "--quiet"], capsys) == (5, "", told)
    ended = said(_warm(source, out), capsys)
    told = f"there is no {str(source)!r}; accepted is the directory of a run, or a model in it"
    assert ended == (2, "", f"fedmime: init: {told}\n")


def test_another_model_is_another_run(first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_warm(first, tmp_path / "out")) == 0
    cold = ["train", *TASK, "--rounds", "3", "--out", tmp_path / "out"]
    ended = said(cold, capsys)
    assert ended.code == 5
    assert "initial: " in ended.err


@pytest.mark.usefixtures("few_writers")
def test_shapes_that_do_not_fit_are_one_line(first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--task", "handwriting-logistic", "--init", first, "--out", tmp_path / "out"]
    ended = said(words, capsys)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert ended.err.startswith(f"fedmime: init: the model of {str(first)!r} must have the arrays of problem.init, ")
    assert not (tmp_path / "out").exists()


def test_a_directory_without_a_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = said(_warm(tmp_path, tmp_path / "out"), capsys)
    told = f"{str(tmp_path)!r} holds no model.safetensors: it is no run, or one that has not ended yet"
    assert ended == (5, "", f"fedmime: init: {told}\n")


def test_methods_are_compared_from_one_start(first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", *TASK[:2], *TASK[4:], "--methods", "fedavg", "mime_lite", "--rounds", "1", "--json"]
    assert said([*words, "--init", first, "--out", tmp_path / "both"], capsys).code == 0
    starts = [load_file(tmp_path / "both" / name / INITIAL) for name in ("FedAvg", "MimeLiteMom")]
    model = load_file(first / "model.safetensors")
    assert all(np.array_equal(start[name], model[name]) for start in starts for name in model)


@pytest.mark.parametrize("workers", [1, 2])
def test_points_of_a_sweep_start_there(workers: int, first: Path, tmp_path: Path) -> None:
    """At a rate of next to nothing, every point stays where the run was; a cold sweep has other points."""
    setting = Setting(task="digits-logistic", algorithm="fedavg", cohort=4, rounds=2)
    grid = {"eta": (1e-12, 1e-11)}
    given = {"cache": tmp_path, "workers": workers}
    warm = sweep(setting, grid, start=warm_start.opened(first), **given)
    assert [trial.accuracy[-1] for trial in warm.trials] == [_accuracies(first)[-1]] * 2
    cold = sweep(setting, grid, **given)
    assert not {trial.name for trial in cold.trials} & {trial.name for trial in warm.trials}


def test_points_of_cold_sweeps_keep_their_names() -> None:
    """What was swept before there were warm starts is found again."""
    named = sweep_rounds._name(Setting(), {"name": "digits"}, {}, {})
    assert named != sweep_rounds._name(Setting(), {"name": "digits"}, {}, {"initial": "a"})
    assert named == sweep_rounds._name(Setting(rounds=7), {"name": "digits"}, {}, {})
