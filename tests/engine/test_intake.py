"""What is wrong with a client's data is said once, on the console and in the run's log, with the client's id."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.setting import a, o, same
from fedmime.engine.intake import Intake

PROBLEM = fm.models.logistic((4, 4), 3)
NAN = "client 'nan', field 'x' has 1 NaN or infinite values of 48; accepted are finite numbers"
LEFT_OUT = f"{NAN}; the client is left out"
UNSCALED = "client 'bytes', field 'x' lies in [0, 255]; models expect [0, 1]: divide by 255"
WRONG = "client 'wrong': logistic: field 'y' must hold labels in [0, 2], got 7"


def _clients(*names: str) -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    clients = {name: {"x": rng.random((3, 4, 4)), "y": rng.integers(0, 3, 3)} for name in names}
    for name, columns in clients.items():
        if name.startswith("bytes"):
            columns["x"] = columns["x"] * 100 + 17
        if name.startswith("nan"):
            columns["x"][0, 0, 0] = np.nan
        if name.startswith("wrong"):
            columns["y"][1] = 7
    return clients


def _run(population: fm.data.Population, cohort_size: int, **options: Any) -> tuple[fm.Run, list[tuple[object, ...]]]:
    refused: list[tuple[object, ...]] = []
    given = {"algorithm": a.fedavg(0.1), "on_round": lambda info, _: refused.append(info.refused)} | options
    return fm.simulate(problem=PROBLEM, population=population, rounds=3, cohort_size=cohort_size, **given), refused


@pytest.mark.parametrize("stored", [False, True])
def test_findings_are_said_once_with_ids(stored: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    population = fm.data.from_arrays(_clients("a", "bytes", "bytes2", "nan"))
    if stored:
        population.save(tmp_path / "store")
        population = fm.data.from_store(tmp_path / "store")
    run, refused = _run(population, 4, run_dir=tmp_path / "run")
    assert refused == [("nan",)] * 3
    assert run.history["refused"].tolist() == [1, 1, 1]
    log = (tmp_path / "run" / "log.txt").read_text()
    for line in (LEFT_OUT, UNSCALED):
        assert caplog.messages.count(line) == 1
        assert log.count(line) == 1
    assert "INFO fedmime.run: round 2 left out: 'nan'" in log
    assert caplog.text.count("lies in [0, 255]") == 1


@pytest.mark.parametrize("basic", [False, True])
def test_the_console_shows_warnings_and_no_notes(basic: bool, tmp_path: Path, monkeypatch, capsys) -> None:
    """Whether logging was never set up, or by `logging.basicConfig()`, and also if the run has a log of its own."""
    population = fm.data.from_arrays(_clients("a", "nan"))
    for run_dir in (None, tmp_path, tmp_path):
        monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler()] if basic else [])
        capsys.readouterr()
        _run(population, 2, run_dir=run_dir)
        told = capsys.readouterr().err.splitlines()
        assert len(told) == 1
        assert told[0].endswith(LEFT_OUT)
    assert "going on after round 3" in (tmp_path / "log.txt").read_text()


def test_many_findings_are_in_the_log_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    population = fm.data.from_arrays(_clients("a", *(f"nan{i}" for i in range(30))))
    _run(population, 2, run_dir=tmp_path)
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == 20
    assert (tmp_path / "log.txt").read_text().count("NaN") == 30


def test_a_bad_label_in_memory_ends_a_run_before_it_begins(tmp_path: Path) -> None:
    population = fm.data.from_arrays(_clients(*"abcdefgh", "wrong"))
    for algorithm in (a.fedavg(0.1), a.centralized(o.sgd(), 0.1)):
        with pytest.raises(fm.DataError) as caught:
            fm.simulate(algorithm, PROBLEM, population, 1, 1, run_dir=tmp_path / "run")
        assert str(caught.value) == WRONG
    assert not (tmp_path / "run").exists()


def test_a_bad_label_in_a_store_costs_its_client_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs = []
    for names in (("a", "b", "wrong"), ("a", "b")):
        clients = {name: columns for name, columns in _clients("a", "b", "wrong").items() if name in names}
        folder = tmp_path / f"store{len(names)}"
        fm.data.from_arrays(clients).save(folder)
        runs.append(_run(fm.data.from_store(folder), len(names), batch_size=None))
    (with_it, refused), (without, nobody) = runs
    assert refused == [("wrong",)] * 3
    assert nobody == [()] * 3
    assert caplog.messages == [f"{WRONG}; the client is left out"]
    assert with_it.history["loss"].tolist() == pytest.approx(without.history["loss"].tolist())


def test_a_store_that_does_not_fit_the_problem_is_refused(tmp_path: Path) -> None:
    fm.data.from_arrays(_clients("wrong", "wrong2")).save(tmp_path / "store")
    with pytest.raises(fm.DataError, match="client 'wrong': logistic: field 'y'"):
        _run(fm.data.from_store(tmp_path / "store"), 1)


def test_a_bad_label_of_the_test_set_is_named() -> None:
    population = fm.data.from_arrays(_clients("a"), test=_clients("wrong")["wrong"])
    with pytest.raises(fm.DataError, match="test set: logistic: field 'y' must hold labels"):
        _run(population, 1)


def test_ragged_examples_have_to_be_padded() -> None:
    words = [[1, 2], [1, 2, 3]]
    population = fm.data.from_arrays({"a": {"x": words, "y": words}})
    for problem in (fm.models.char_lstm(), fm.models.from_functions(PROBLEM.init, PROBLEM.loss)):
        with pytest.raises(fm.DataError, match="client 'a': field 'x' must hold examples of one length"):
            fm.simulate(a.fedavg(0.1), problem, population, 1, 1)


def test_single_rounds_name_clients_by_position_or_given_id(caplog: pytest.LogCaptureFixture) -> None:
    batches = [{name: column[None] for name, column in each.items()} for each in _clients("a", "nan").values()]
    algorithm = a.fedavg(0.1)
    state = algorithm.init(PROBLEM.init(jax.random.key(0)))
    for ids, named in ((None, 1), ([3, 71], 71)):
        for _ in range(2):
            _, info = fm.run_round(algorithm, PROBLEM, state, fm.Cohort.from_batches(batches, ids=ids))
            assert info.refused == (named,)
        assert sum(line.startswith(f"client {named}, field 'x' has 1 NaN") for line in caplog.messages) == 1
    with pytest.raises(fm.DataError, match="from_batches: client 71 needs arrays"):
        fm.Cohort.from_batches([batches[0], {"x": np.zeros(2)}], ids=[3, 71])


def test_integers_of_images_are_for_the_loss_to_scale() -> None:
    intake = Intake.of_run(lambda columns: None, pooled=False)
    intake.look_at_all(fm.data.from_arrays({"a": {"x": np.full((2, 4, 4), 255, np.uint8)}}))
    assert not intake._findings


def test_figures_of_single_clients_carry_their_ids(tmp_path: Path) -> None:
    clients = _clients("a", "b") | {"nobody": {"x": np.zeros((0, 4, 4)), "y": np.zeros(0, int)}} | _clients("c")
    held_out = fm.data.from_arrays(clients)
    population = fm.data.from_arrays(_clients("a", "b"), test_clients=held_out)
    _run(population, 2, run_dir=tmp_path, clients_every=0)
    told = json.loads((tmp_path / "clients.json").read_text())
    assert told["ids"] == ["a", "b", "c"]
    assert len(told["accuracy"]) == 3


def test_memory_of_a_refused_client_stays_as_it_was() -> None:
    """The clients of whom SCAFFOLD keeps something go by position, refusals by id."""
    huge = _clients("a", "b", "c")
    huge["b"]["x"] *= 1e200
    run, refused = _run(fm.data.from_arrays(huge), 3, algorithm=a.scaffold(0.1), gate=fm.Gate(largest=10.0, patience=9))
    assert refused == [("b",)] * 3
    assert run.state is not None
    seen = run.state.memory.read([0, 1])
    assert not same(seen[0], seen[1])
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(seen[1]))
