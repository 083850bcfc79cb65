"""The compiled back end in its process: errors end a run, threads are left alone, runs do not disturb each other."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, model, o, population, same
from engine.tracing import one_round

RAISES = """
import jax, jax.numpy as jnp, numpy as np
import fedmime as fm

def look(x):
    if x.max() > 1:
        raise ArithmeticError("this client's loss failed")
    return x

def loss(params, batch, key):
    seen = jax.pure_callback(look, jax.typeof(batch["x"]), batch["x"], vmap_method="sequential")
    return (seen @ params["w"]) ** 2

problem = fm.models.from_functions(lambda key: {"w": jnp.ones(3)}, loss)
clients = {f"c{i}": {"x": np.full((4, 3), 2.0 if i == 5 else 0.5)} for i in range(12)}
assert len(jax.devices()) == DEVICES
for algorithm in (fm.algorithms.fedavg(0.1), fm.algorithms.mime(fm.optimizers.momentum(), 0.1)):
    try:
        fm.simulate(algorithm, problem, fm.data.from_arrays(clients), 3, 12, 2)
    except Exception as error:
        print("ended:", "this client's loss failed" in str(error))
"""


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_an_error_in_one_clients_loss_ends_the_run(devices: int) -> None:
    """No device waits for one that has failed: the process ends by itself, long before the guard's time is up."""
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": os.pathsep.join(sys.path)}
    program = RAISES.replace("DEVICES", str(devices))
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines() == ["ended: True"] * 2, done.stderr


def _affinities() -> set[frozenset[int]]:
    return {frozenset(os.sched_getaffinity(int(task.name))) for task in Path("/proc/self/task").iterdir()}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of threads")
def test_no_threads_affinity_is_touched() -> None:
    before = _affinities()
    fm.simulate(a.mime(o.momentum(), 0.1), PROBLEM, population([5, 9, 7, 8]), 3, 3, 4)
    assert _affinities() == before == {frozenset(os.sched_getaffinity(0))}


def test_two_runs_in_two_threads_give_the_numbers_of_single_runs() -> None:
    clients = population([5, 9, 7, 8, 6])
    algorithms = [a.mime(o.momentum(), 0.1), a.scaffold(0.1)]

    def run(algorithm: fm.algorithms.Algorithm) -> fm.Run:
        return fm.simulate(algorithm, PROBLEM, clients, 6, 3, 4, initial=model())

    alone = [run(algorithm).params for algorithm in algorithms]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        together = [found.params for found in pool.map(run, algorithms)]
    assert same(alone, together)


@pytest.mark.parametrize("backend", ["local", "reference"])
@pytest.mark.parametrize("name", ["fedavg", "mime"])
def test_one_round_passes_through_few_files(name: str, backend: str, fact) -> None:
    """A new maintainer can follow a round: the files that it enters between its draw and its recorded figures."""
    algorithm = a.fedavg(0.1) if name == "fedavg" else a.mime(o.momentum(), 0.1)
    trace = one_round(algorithm, backend)
    fact(f"files of the package in one round on {backend}", len(trace.files))
    assert len(trace.files) <= 12, trace.files
    assert trace.switches <= (40 if backend == "local" else 65)


def test_a_program_belongs_to_its_problem() -> None:
    """Two problems of the same shapes do not share a compiled loss."""
    other = fm.models.from_functions(PROBLEM.init, lambda p, batch, key: 2 * PROBLEM.loss(p, batch, key))
    cohort = fm.Cohort.from_batches([{"x": np.ones((1, 2, 4)), "y": np.zeros((1, 2), int)}])
    algorithm = a.fedavg(0.1)
    one, two = (fm.run_round(algorithm, p, algorithm.init(model()), cohort)[1] for p in (PROBLEM, other))
    assert two.loss == pytest.approx(2 * one.loss)
    assert jax.device_count() >= 2
