"""The log of a run: what a row says, what a round costs, when a run is given up, and what the directory is told."""

import math
from typing import Any

import jax
import numpy as np
import pytest

from engine.setting import a, columns, model, o
from fedmime.aggregation.communication import Cost, Traffic
from fedmime.aggregation.gate import Gate
from fedmime.algorithms.abstract import anchor_of
from fedmime.engine.backends.backend import Work
from fedmime.engine.cohort import Cohort
from fedmime.engine.log import Log
from fedmime.engine.round import Info
from fedmime.engine.work import work_of
from fedmime.errors import ConfigError, Diverged, Stopped
from fedmime.runs.directory import BEST

COST = Cost(1000, update=Traffic(10, 1), gradient=None, prime=Traffic(100, 5))


class Directory:
    """A run directory that notes what it is told."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.told: list[tuple[Any, ...]] = []

    def row(self, row: dict[str, Any], timings: dict[str, float]) -> None:
        self.rows.append(row)
        self.timings = timings

    def status(self, *what: Any) -> None:
        self.told.append(what)

    def export(self, state: Any, *name: str) -> None:
        self.told.append(("export", *name))

    def save(self, state: Any) -> None:
        self.told.append(("save", state.round))

    def clients(self, facts: dict[str, Any]) -> None:
        self.told.append(("clients", facts))


def _info(t: int = 0, *, primed: bool = False, abandoned: bool = False, clients: int = 3, refused: tuple = ()) -> Info:
    return Info(t, primed, abandoned, clients, refused, 4, 12, 0.5, math.nan, math.nan, math.nan, 0.1)


def _work(algorithm: Any = None, *, full: bool = False) -> Work:
    algorithm = algorithm or a.fedavg(0.1)
    rng = np.random.default_rng(0)
    batches = [{name: column[None] for name, column in columns(rng, 4).items()} for _ in range(3)]
    others = [columns(rng, 4) for _ in range(2)] if full else None
    state = algorithm.init(model())
    cohort = Cohort.from_batches(batches, full=others)
    return work_of(algorithm, anchor_of(algorithm, state.server), 0, cohort, jax.random.key(0))


def test_a_row_has_all_figures_of_its_round() -> None:
    log = Log(2, Gate(), COST, None)
    log.write(_work(), _info(refused=("a", 7))._replace(reasons={"norm": 2}), {"test_accuracy": 0.25})
    (row,) = log.rows
    assert set(Info._fields) - {"reasons", "clipped", "clip_norm", "epsilon"} <= set(row)
    assert row["refused_norm"] == 2
    assert "epsilon" not in row  # of private runs only
    assert (row["refused"], row["loss"], row["test_accuracy"]) == (2, 0.5, 0.25)
    assert "reason" not in row


def test_bytes_add_up_over_rounds() -> None:
    log, work = Log(3, Gate(), COST, None), _work()
    for t, primed in enumerate((True, False, False)):
        log.write(work, _info(t, primed=primed), {})
    sent = [(row["bytes_down"], row["bytes_up"], row["bytes_total"]) for row in log.rows]
    assert sent == [(300, 15, 315), (30, 3, 348), (30, 3, 381)]


def test_halves_of_a_split_cohort_cost_their_own() -> None:
    cost = Cost(1000, update=Traffic(10, 1), gradient=Traffic(7, 2), prime=None)
    log = Log(1, Gate(), cost, None)
    log.write(_work(a.mime(o.momentum(), 0.1, split=True), full=True), _info(), {})
    assert (log.rows[0]["bytes_down"], log.rows[0]["bytes_up"]) == (3 * 10 + 2 * 7, 3 * 1 + 2 * 2)


def test_pooled_training_sends_nothing() -> None:
    log = Log(1, Gate(), COST, None)
    log.write(_work(a.centralized(o.sgd(), 0.1)), _info(), {})
    assert log.rows[0]["bytes_total"] == 0


@pytest.mark.parametrize("patience", [1, 2, 3])
def test_patience_is_lost_after_so_many_abandoned_rounds(patience: int) -> None:
    log, work = Log(9, Gate(patience=patience), COST, None), _work()
    log.write(work, _info(0), {})
    for t in range(1, patience):
        log.write(work, _info(t, abandoned=True), {})
    with pytest.raises(Diverged, match=rf"^simulate: {patience} rounds in a row .* round {patience}; lower eta$"):
        log.write(work, _info(patience, abandoned=True), {})
    assert len(log.rows) == patience + 1
    assert "lower eta" not in log.rows[-1]["reason"]


@pytest.mark.parametrize("between", [{"abandoned": False}, {"abandoned": True, "clients": 0}])
def test_a_good_round_or_one_without_clients_restores_patience(between: dict[str, Any]) -> None:
    log, work = Log(9, Gate(patience=2), COST, None), _work()
    for t in range(6):
        log.write(work, _info(t, **({"abandoned": True} if t % 2 else between)), {})
    assert len(log.rows) == 6


def test_a_run_without_a_directory_writes_nothing() -> None:
    state = a.fedavg(0.1).init(model())
    with Log(1, Gate(), COST, None) as log:
        log.best(state, {"test_accuracy": 0.5})
        log.save(state)
        log.clients(0, ["a"], {"loss": np.zeros(1)}, np.ones(1, int))
        log.finish(state)
    assert log.rows == []


def test_a_directory_is_told_how_the_run_goes() -> None:
    directory, state = Directory(), a.fedavg(0.1).init(model())._replace(round=2)
    with Log(2, Gate(), COST, directory) as log:  # pyright: ignore[reportArgumentType]
        log.write(_work(), _info(), {})
        log.save(state)
        log.finish(state)
    assert log.rows is directory.rows
    expected = [("running", 0, 2), ("save", 2), ("running", 2, 2), ("export",), ("done", 2, 2)]
    assert directory.told == expected


def test_durations_do_not_belong_to_what_was_computed() -> None:
    directory = Directory()
    log = Log(2, Gate(), COST, directory)  # pyright: ignore[reportArgumentType]
    log.write(_work(), _info(), {"test_loss": 0.3}, {"workers": 2, "seconds_gather": 0.1})
    assert directory.rows[0]["workers"] == 2
    assert directory.rows[0]["test_loss"] == 0.3
    assert "seconds_gather" not in directory.rows[0]
    assert directory.timings == {"seconds_gather": 0.1}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Stopped("stopped by a signal", 15), ("preempted", 0, 2, "stopped by a signal")),
        (KeyboardInterrupt(), ("preempted", 0, 2, "KeyboardInterrupt: ")),
        (ConfigError("eta must be positive"), ("failed", 0, 2, "eta must be positive")),
        (ZeroDivisionError("by zero"), ("failed", 0, 2, "ZeroDivisionError: by zero")),
    ],
)
def test_a_directory_is_told_why_the_run_ended(error: BaseException, told: tuple[Any, ...]) -> None:
    directory = Directory()
    with pytest.raises(type(error)), Log(2, Gate(), COST, directory):  # pyright: ignore[reportArgumentType]
        raise error
    assert directory.told[-1] == told


def test_the_best_model_is_exported_once() -> None:
    directory, state = Directory(), a.fedavg(0.1).init(model())
    directory.rows.append({"round": 0, "test_accuracy": 0.5})  # of an earlier process
    log = Log(9, Gate(), COST, directory)  # pyright: ignore[reportArgumentType]
    exports = []
    for score in (0.4, None, 0.6, 0.6, 0.7):
        log.best(state, {} if score is None else {"test_accuracy": score})
        exports.append(len(directory.told))
    assert exports == [0, 0, 1, 1, 2]
    assert directory.told[0] == ("export", BEST)


def test_metrics_of_clients_are_plain_and_finite() -> None:
    directory = Directory()
    log = Log(9, Gate(), COST, directory)  # pyright: ignore[reportArgumentType]
    log.clients(3, ["a", "b"], {"loss": np.array([0.5, np.nan])}, np.array([4, 0]))
    facts = {"round": 3, "ids": ["a", "b"], "loss": [0.5, None], "examples": [4, 0]}
    assert directory.told == [("clients", facts)]
