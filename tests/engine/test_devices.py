"""Which core each device's thread is sent to."""

import os

import numpy as np
import pytest

import fedmime as fm
from fedmime import native
from fedmime.engine.devices import own_cores, visit
from native import threads


@pytest.mark.parametrize(
    ("devices", "cores", "own"),
    [(2, {0, 1}, [0, 1]), (2, {4, 7}, [0, 1]), (4, {0, 1}, [-1] * 4), (2, {0, 1, 2}, [-1] * 2), (1, {3}, [-1])],
)
def test_devices_have_cores_of_their_own_where_they_use_all(monkeypatch, devices, cores, own) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores)
    assert own_cores(devices).tolist() == own


@pytest.mark.parametrize(("devices", "visited"), [(2, [0, 1, 0]), (3, [-1] * 3)])
def test_the_host_goes_from_core_to_core(monkeypatch, devices, visited) -> None:
    asked = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {4, 7})
    monkeypatch.setattr(native, "visit", asked.append)
    for turn in range(3):
        visit(turn, devices)
    assert asked == visited


def test_no_thread_stays_bound_after_many_rounds() -> None:
    """Devices' threads and the host's move one another all the time."""
    random = np.random.default_rng(0)
    clients = {f"{i}": {"x": random.random((20, 3)), "y": random.integers(0, 4, 20)} for i in range(12)}
    problem = fm.models.logistic(input_shape=(3,), classes=4)
    free = os.sched_getaffinity(0)
    fm.simulate(fm.algorithms.fedavg(0.1), problem, fm.data.from_arrays(clients), 60, 12)
    bound = threads.cores()
    assert bound
    assert all(cores == free for cores in bound)
