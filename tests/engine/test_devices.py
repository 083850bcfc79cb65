"""Which core each device's thread is sent to."""

import os
import subprocess
import sys

import numpy as np
import pytest

import fedmime as fm
from fedmime.cores import count
from fedmime.engine.devices import own_cores
from native import threads


@pytest.mark.parametrize(
    ("devices", "cores", "own"),
    [(2, {0, 1}, [0, 1]), (2, {4, 7}, [0, 1]), (4, {0, 1}, [-1] * 4), (2, {0, 1, 2}, [-1] * 2), (1, {3}, [-1])],
)
def test_devices_have_cores_of_their_own_where_they_use_all(monkeypatch, devices, cores, own) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores)
    assert own_cores(devices).tolist() == own


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


_START = """
import jax
from fedmime.models import logistic
model = logistic(input_shape=(3,), classes=2).init(jax.random.key(0))
from fedmime import simulate
print(jax.local_device_count())
"""
_DATA_FIRST = """
import jax, fedmime as fm
population = fm.data.digits(clients=3)
key = jax.random.key(0)
print(fm.simulate and jax.local_device_count())
"""


@pytest.mark.parametrize(("environment", "devices"), [({}, count()), ({"JAX_NUM_CPU_DEVICES": "3"}, 3)])
@pytest.mark.parametrize("program", [_START, _DATA_FIRST], ids=["models", "data"])
def test_a_user_who_starts_jax_before_the_engine_has_all_cores(program, environment, devices) -> None:
    given = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=given | environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(devices)]
