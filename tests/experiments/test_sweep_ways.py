"""Who trains the points: chosen by how many there are, and said."""

import jax
import pytest

import fedmime as fm
from fedmime.errors import ConfigError
from fedmime.experiments import sweep_ways
from fedmime.experiments.sweep_trial import Trial
from fedmime.experiments.sweep_ways import Staff, Ways, processes, staff

DEVICES = len(jax.local_devices())  # three, see conftest.py


class Way:
    """Takes points to the end at once."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.closed = 0

    def advance(self, chosen, until: int, on_round, stop) -> None:
        self.given.append(len(chosen))
        for trial in chosen:
            trial.done = until

    def close(self) -> None:
        self.closed += 1


def test_points_are_spread_while_there_are_enough() -> None:
    said: list[str] = []
    whole, spread, ended = Way(), Way(), Way()
    found = Staff(None, "all cores", 4, 1, "4 processes", ", because", lambda *_: None, ended.close)  # pyright: ignore
    ways = Ways(whole, spread, found, said.append)  # pyright: ignore
    points = [Trial({}, str(i)) for i in range(9)]
    points[0].done = points[1].done = 5  # before the sweep was broken off
    for left, until in ((9, 5), (4, 10), (3, 20), (3, 20)):
        ways.advance(points[:left], until, lambda: None)
    assert (spread.given, whole.given) == ([9, 4], [3])  # nothing is left to do the last time
    assert spread.closed == 1  # the cores are needed
    assert said == [
        "sweep: 7 points on 4 processes, every point on one of them, because",
        "sweep: 3 points in turn, each on all cores, because 4 workers are more than that",
    ]
    ways.close()
    assert ended.closed == whole.closed == 1


@pytest.mark.parametrize(
    ("devices", "points", "expected"),
    [
        (1, 9, 1),
        (2, 9, 2),
        (2, 1, 1),
        (3, 9, 3),
        (7, 3, 3),
        (16, 9, 8),
        (64, 567, 8),
        (16, 3, 3),
        (12, 5, 5),
        (5, 4, 4),
    ],
)
def test_processes_leave_few_devices_over(devices: int, points: int, expected: int) -> None:
    assert processes(devices, points) == expected


def test_by_default_short_sweeps_take_one_process() -> None:
    short, long = (staff("local", None, 9, rounds, named=True) for rounds in (sweep_ways.WORTH - 1, sweep_ways.WORTH))
    assert (short.workers, short.why) == (1, f", because 499 rounds are not worth starting {DEVICES} processes")
    assert (long.workers, long.why) == (DEVICES, f", because 500 rounds are worth starting {DEVICES} processes")
    assert staff("local", None, 1, sweep_ways.WORTH, named=True).why == ""
    assert staff("local", None, 9, sweep_ways.WORTH, named=False).workers == 1  # nobody else can open its data


def test_processes_divide_devices() -> None:
    found = staff("local", 2, 9, 1, named=True)
    assert (found.workers, found.devices) == (2, DEVICES // 2)
    assert found.apart == f"2 processes with 1 of {DEVICES} devices each"
    assert staff("local", 2 * DEVICES, 99, 1, named=True).devices == 1
    assert staff("local", 2, 1, 1, named=True).workers == 1


def test_ray_is_described_without_starting_it() -> None:
    found = staff(fm.backends.ray(workers=4, cores_per_worker=2), None, 9, 1, named=True)
    assert (found.workers, found.devices, found.apart) == (4, 2, "4 Ray workers")
    assert staff(fm.backends.ray(workers=4), None, 9, 1, named=False).start is None  # the data stays with the driver


@pytest.mark.parametrize(
    ("backend", "workers", "named", "told"),
    [
        ("local", 0, True, "workers must be a whole number of at least 1, got 0"),
        ("local", 2, False, "workers=2 find clients by the task's name"),
        ("reference", None, True, "backend must be 'local' or 'ray', got 'reference'"),
        ("ray", 2, True, "workers of Ray are given to fm.backends.ray, got workers=2 beside it"),
    ],
)
def test_refusals(backend: str, workers: int | None, named: bool, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        staff(backend, workers, 9, 1000, named)


def test_accelerators_are_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert staff("local", None, 9, sweep_ways.WORTH, named=True).workers == 1
    with pytest.raises(ConfigError, match="the devices here are 'gpu'"):
        staff("local", 2, 9, 1, named=True)
