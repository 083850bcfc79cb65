"""`eval`: what it measures, for whom, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedmime as fm
from faults.program import said
from fedmime.cli.main import main

TASK = "digits-logistic"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the command line."""
    path = tmp_path_factory.mktemp("run") / "one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMIME_NO_COMPILATION_CACHE", "1")
        words = ["train", "--task", TASK, "--algorithm", "fedavg", "--cohort", "4", "--evaluate-every", "2"]
        assert main([*words, "--rounds", "4", "--out", str(path), "--quiet"]) == 0
    return path


def simulated(path: Path, problem: fm.models.Problem) -> Path:
    """A finished run of `fm.simulate`, which records no task."""
    population = fm.data.digits(clients=50, alpha=0.1, seed=0)
    fm.simulate(fm.algorithms.fedavg(eta=0.1), problem, population, rounds=2, cohort_size=4, run_dir=path)
    return path


@pytest.fixture(scope="module")
def made_in_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    problem = fm.models.logistic(input_shape=(8, 8, 1), classes=10)
    return simulated(tmp_path_factory.mktemp("python") / "one", problem)


def told(words: list[object], capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(said(["eval", *words, "--json"], capsys).out)


def test_agrees_with_the_run(run: Path, capsys) -> None:
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    found = told([run], capsys)
    assert (found["test_accuracy"], found["test_loss"]) == (last["test_accuracy"], last["test_loss"])
    assert told([run, "--best"], capsys)["test_accuracy"] == np.nanmax(fm.Run.load(run).history["test_accuracy"])
    assert f"{last['test_accuracy']:.4f}" in said(["eval", run], capsys).out


def test_names_clients(run: Path, capsys) -> None:
    population = fm.data.digits(clients=50, alpha=0.1, seed=0)
    found = told([run, "--clients", 5, "--split", "train"], capsys)
    assert (found["clients"], found["clients_on"]) == (5, "train")
    assert set(found["each"]["id"]) < set(population.ids)
    assert found["spread"]["accuracy"]["mean"] == pytest.approx(np.mean(found["each"]["accuracy"]))


def test_finetunes_as_the_library_does(run: Path, capsys) -> None:
    found = told([run, "--finetune", 5, "--finetune-eta", 0.2], capsys)
    problem = fm.models.logistic(input_shape=(8, 8, 1), classes=10)
    population = fm.data.digits(clients=50, alpha=0.1, seed=0)
    same = fm.evaluate(problem, fm.Run.load(run).params, population, finetune=5, finetune_eta=0.2)
    assert found["finetuned"]["accuracy"]["mean"] == pytest.approx(same.spread("accuracy", finetuned=True).mean)
    assert found["finetuned"]["loss"]["mean"] != found["spread"]["loss"]["mean"]
    people = said(["eval", run, "--finetune", 5], capsys).out
    assert "after 5 steps" in people


def test_runs_made_in_python_need_the_task(made_in_python: Path, capsys) -> None:
    ended = said(["eval", made_in_python], capsys)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "was made in Python and records no task; give it as --task NAME" in ended.err
    history = fm.Run.load(made_in_python).history
    assert told([made_in_python, "--task", TASK], capsys)["test_loss"] == pytest.approx(history["test_loss"][-1])


def test_another_task_is_refused(run: Path, tmp_path: Path, capsys) -> None:
    ended = said(["eval", run, "--task", "annotators"], capsys)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "is a run of 'digits-logistic', got 'annotators'" in ended.err
    larger = simulated(tmp_path / "mlp", fm.models.mlp(input_shape=(8, 8, 1), classes=10, hidden=(5,)))
    ended = said(["eval", larger, "--task", TASK], capsys)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "params must have the arrays of problem.init" in ended.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--finetune", "0"], "finetune must be"),
        (["--finetune", "2", "--finetune-eta", "-1"], "finetune_eta must be positive"),
        (["--finetune", "2", "--split", "train"], "split must be 'test'"),
        (["--clients", "0"], "clients must be"),
    ],
)
def test_refusals(words: list[str], says: str, run: Path, capsys) -> None:
    ended = said(["eval", run, *words], capsys)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert says in ended.err
