"""Which core each device's thread is sent to."""

import os

import pytest

from fedmime.engine.devices import own_cores


@pytest.mark.parametrize(
    ("devices", "cores", "own"),
    [(2, {0, 1}, [0, 1]), (2, {4, 7}, [0, 1]), (4, {0, 1}, [-1] * 4), (2, {0, 1, 2}, [-1] * 2), (1, {3}, [-1])],
)
def test_devices_have_cores_of_their_own_where_they_use_all(monkeypatch, devices, cores, own) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores)
    assert own_cores(devices).tolist() == own
