"""Which core each device's thread is sent to."""

import os

import pytest

from fedmime.engine.devices import own_cores, visit


@pytest.mark.parametrize(
    ("devices", "cores", "own"),
    [(2, {0, 1}, [0, 1]), (2, {4, 7}, [0, 1]), (4, {0, 1}, [-1] * 4), (2, {0, 1, 2}, [-1] * 2), (1, {3}, [-1])],
)
def test_devices_have_cores_of_their_own_where_they_use_all(monkeypatch, devices, cores, own) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores)
    assert own_cores(devices).tolist() == own


@pytest.mark.parametrize(("devices", "gone"), [(2, [{4}, {7}, {4}]), (3, [])])
def test_the_host_goes_from_core_to_core_and_stays_free(monkeypatch, devices, gone) -> None:
    asked, may = [], {4, 7}
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: may)
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: asked.append((process, cores)))
    for turn in range(3):
        visit(turn, devices)
    assert asked == [(0, cores) for place in gone for cores in (place, may)]
