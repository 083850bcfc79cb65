"""Points in processes of their own: the bits of one process with as many devices a point, whatever happens to them."""

import dataclasses
import logging
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fedmime as fm
from fedmime.errors import CheckpointError, ClusterError, DataError, Stopped
from fedmime.experiments import grid, sweep_processes, sweep_share
from fedmime.experiments.setting import Setting
from fedmime.experiments.sweep import Swept, sweep
from fedmime.experiments.sweep_processes import Processes
from fedmime.experiments.sweep_rounds import Lockstep
from fedmime.experiments.sweep_spread import Spread
from fedmime.experiments.sweep_trial import Shelf

RATES = {"eta": (1.0, 0.1, 0.01, 1e-3, 1e-4)}
SCAFFOLD = Setting(task="digits-logistic", algorithm="scaffold", rounds=6, cohort=5, evaluate_every=2, drift=False)
LONG = 60
ONE = fm.backends.local(devices=1)


def curves(found):
    return [(trial.rounds, trial.accuracy, trial.loss, trial.done) for trial in found.trials]


def states(cache: Path) -> dict[str, dict[str, bytes]]:
    """The arrays of every point."""
    found = {}
    for file in cache.glob("*.npz"):
        with np.load(file) as arrays:
            found[file.name] = {name: arrays[name].tobytes() for name in arrays if name != "facts"}
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Swept, Path]:
    """One process with one device."""
    cache = tmp_path_factory.mktemp("whole")
    return sweep(SCAFFOLD, RATES, halving=True, workers=1, backend=ONE, cache=cache), cache


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory) -> Path:
    """The cache of a sweep that a signal has ended in its second half."""
    cache = tmp_path_factory.mktemp("cache")
    rounds: list[int] = []
    with pytest.raises(Stopped, match="stopped by signal 15"):
        sweep(
            SCAFFOLD,
            RATES,
            halving=True,
            workers=2,
            cache=cache,
            progress=lambda _, done, total: rounds.append(done),
            stop=lambda: 15 if len(rounds) > 8 else None,
        )
    return cache


def test_a_sweep_broken_off_goes_on_to_the_bits_of_one_process(whole, broken_off: Path) -> None:
    said: list[str] = []
    found = sweep(SCAFFOLD, RATES, halving=True, workers=2, cache=broken_off, say=said.append)
    assert curves(found) == curves(whole[0])
    assert found.runs == whole[0].runs
    assert states(broken_off) == states(whole[1])
    words = "points on 2 processes with 1 of 3 devices each, every point on one of them"
    assert all(line.endswith(words) for line in said)


def test_errors_of_a_process_are_raised_here(broken_off: Path, tmp_path: Path) -> None:
    shutil.copytree(broken_off, tmp_path / "cache")
    for file in (tmp_path / "cache").glob("*.memory"):
        file.write_bytes(bytes(file.stat().st_size))
    longer = dataclasses.replace(SCAFFOLD, rounds=8)
    with pytest.raises(CheckpointError, match=r"what the client at position [0-9]+ kept is damaged") as raised:
        sweep(longer, RATES, workers=2, cache=tmp_path / "cache")
    assert "sweep_share.py" in raised.value.__notes__[0]  # where it happened


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[tuple[Lockstep, Processes, Spread]]:
    """Two processes, and points that they train for so long that one can be killed meanwhile."""
    values = grid.points(RATES)
    prepared = sweep_share.prepare(SCAFFOLD, values, None, None)
    steps = Lockstep(prepared, values, {LONG}, Shelf(tmp_path), ONE)
    processes = Processes(sweep_share.job(SCAFFOLD, values, {LONG}, None, None, tmp_path, 1), 2, 1)
    found = Spread(steps.trials, lambda: processes)
    yield steps, processes, found
    found.close()
    processes.close()


def test_points_of_a_killed_process_are_trained_by_the_other(spread, tmp_path: Path, caplog) -> None:
    steps, processes, found = spread
    victim = processes._alive[0]
    rounds = []

    def on_round() -> None:
        if not rounds:
            os.kill(victim._process.pid, signal.SIGKILL)
        rounds.append(1)

    with caplog.at_level(logging.WARNING):
        found.advance(steps.trials, LONG, on_round)
    assert caplog.messages == ["sweep: worker process 1 was ended by signal 9; the others train its points"]
    alone = sweep(dataclasses.replace(SCAFFOLD, rounds=LONG, evaluate_every=LONG), RATES, workers=1, backend=ONE)
    assert [trial.accuracy for trial in steps.trials] == [trial.accuracy for trial in alone.trials]

    os.kill(processes._alive[0]._process.pid, signal.SIGKILL)
    with pytest.raises(ClusterError, match="no worker process is left, the last one was ended by signal 9"):
        found.advance(steps.trials, 2 * LONG, lambda: None)


@pytest.mark.parametrize(
    ("kind", "expected", "told"),
    [
        ("DataError", DataError, "words"),
        ("PermissionError", PermissionError, "words"),
        ("Stopped", RuntimeError, "Stopped: words"),
        ("KeyError", RuntimeError, "KeyError: words"),
        ("XlaRuntimeError", RuntimeError, "XlaRuntimeError: words"),
    ],
)
def test_errors_keep_their_kind(kind: str, expected: type[Exception], told: str) -> None:
    error = sweep_processes._raised(kind, "words", "where")
    assert type(error) is expected
    assert str(error) == told
    assert error.__notes__ == ["where"]
