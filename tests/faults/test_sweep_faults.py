"""Sweeps in several processes: signals reach all of them, and none outlives the sweep."""

import os
import signal
from pathlib import Path

import pytest

from faults.program import Child, Server, said

psutil = pytest.importorskip("psutil", reason="finds the processes of a sweep")

POINTS = ["sweep", "--task", "digits-logistic", "--cohort", "4", "--algorithm", "scaffold", "--grid", "eta=1,0.1,0.01"]


def begun(forks: Server, out: Path) -> tuple[Child, list]:
    """A sweep that would take hours, and its two worker processes, each in a session that Ctrl-C does not reach."""
    child = forks.start([*POINTS, "--rounds", 100_000, "--workers", 2, "--out", out])
    workers = lambda: psutil.Process(child.pid).children()
    assert child.until(lambda: len(workers()) == 2 and all(os.getsid(each.pid) == each.pid for each in workers()))
    return child, workers()


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow), (signal.SIGINT, 130)]
)
def test_26_signals_save_the_points_of_all_processes(
    number: int, code: int, forks: Server, tmp_path: Path, capsys
) -> None:
    child, workers = begun(forks, tmp_path)
    child.kill(number)
    assert child.wait() == code
    assert "sweep: 3 points on 2 processes" in child.said()
    assert f"fedmime: sweep: stopped by signal {number}; the same command goes on" in child.said()
    assert not psutil.wait_procs(workers, timeout=1)[1]
    assert len(list((tmp_path / "cache").glob("*.npz"))) == 3
    assert said([*POINTS, "--rounds", 1, "--out", tmp_path, "--quiet"], capsys).code == 0


def test_25_processes_end_with_a_sweep_that_is_killed(forks: Server, tmp_path: Path) -> None:
    child, workers = begun(forks, tmp_path)
    assert child.until(lambda: len(list(tmp_path.glob("cache/*.memory"))) == 3)  # all points have been opened
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert not psutil.wait_procs(workers, timeout=60)[1]
    assert len(list((tmp_path / "cache").glob("*.npz"))) == 3  # what they were at is saved
