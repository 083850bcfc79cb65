"""What Ray's object store costs: calls, and parameters on their way to workers and back, by their size.

Two workers share this machine with the driver. A third is on a node of its own on this machine, whose objects have to
go through Ray's object manager and the loopback interface, as they would through a network.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np

from fedmime.engine.backends.ray.cluster import CLUSTER

CALLS = 300
ARRAYS = 4  # that parameters consist of
REPEATS, FEW = 9, 4  # of small and of large sizes
LARGE = 50e6  # bytes
PATIENCE = 60.0  # seconds that a node has to start
STAGES = ("put", "get", "give", "fetch", "add")

Parameters = list[np.ndarray]


class Echo:
    """A worker that takes parameters onto its device and gives answers of the same size."""

    def empty(self) -> None:
        """Do nothing."""

    def take(self, refs: list[Any]) -> float:
        """Seconds until parameters in the store are on the device."""
        import jax
        import ray

        start = time.perf_counter()
        jax.block_until_ready(jax.device_put(ray.get(refs[0])))
        return time.perf_counter() - start

    def give(self, size: float) -> Parameters:
        """An answer, which exists already."""
        if not hasattr(self, "_answer") or sum(a.nbytes for a in self._answer) != _nbytes(size):
            self._answer = parameters(size)
        return self._answer


def parameters(size: float) -> Parameters:
    """So many bytes of parameters."""
    return [np.ones(int(size) // 4 // ARRAYS, np.float32) for _ in range(ARRAYS)]


def _nbytes(size: float) -> int:
    return ARRAYS * 4 * (int(size) // 4 // ARRAYS)


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that an action took, and what it gave."""
    start = time.perf_counter()
    value = action()
    return time.perf_counter() - start, value


def calls(actors: list[Any]) -> dict[str, float]:
    """Seconds from an empty call to its answer, and of one of many calls that are sent at once."""
    import ray

    trips = [timed(lambda: ray.get(actors[0].empty.remote()))[0] for _ in range(CALLS)]
    many, _ = timed(lambda: ray.get([actors[i % len(actors)].empty.remote() for i in range(CALLS)]))
    return {"trip": median(trips), "call": many / CALLS}


def passage(size: float, actors: list[Any], trip: float) -> dict[str, float]:
    """Medians of all stages that parameters of a size and answers of the same size go through."""
    sent, total = parameters(size), parameters(size)
    taken = [_stages(sent, total, size, actors, trip) for _ in range(FEW if size > LARGE else REPEATS)]
    stages = zip(STAGES, zip(*taken[1:], strict=True), strict=True)
    return {"size": float(_nbytes(size)), **{stage: median(seconds) for stage, seconds in stages}}


def _stages(sent: Parameters, total: Parameters, size: float, actors: list[Any], trip: float) -> tuple[float, ...]:
    """Seconds of each stage, once."""
    import ray

    put, ref = timed(lambda: ray.put(sent))
    get = max(ray.get([actor.take.remote([ref]) for actor in actors]))
    start = time.perf_counter()
    answers = [actor.give.remote(size) for actor in actors]
    ray.wait(answers, num_returns=len(answers), fetch_local=False)
    give = max(time.perf_counter() - start - trip, 1e-6)
    fetch, answer = timed(lambda: ray.get(answers[0]))
    add, _ = timed(lambda: [np.add(a, b) for a, b in zip(total, answer, strict=True)])
    return put, get, give, fetch, add


def journey(size: float, far: Any) -> dict[str, float]:
    """Seconds in which parameters get to a worker on the other node."""
    import ray

    taken = []
    for _ in range(FEW if size > LARGE else REPEATS):
        ref = ray.put(parameters(size))
        taken.append(ray.get(far.take.remote([ref])))
        del ref
    return {"size": float(_nbytes(size)), "take": median(taken[1:])}


@contextlib.contextmanager
def other_node() -> Iterator[None]:
    """A second node on this machine, which ends with the block."""
    import ray

    words = [sys.executable, "-m", "benchmarks.probes.node", ray.get_runtime_context().gcs_address]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + PATIENCE
            while sum(node["Alive"] for node in ray.nodes()) < 2:
                if time.monotonic() > until or process.poll() is not None:
                    raise RuntimeError("a second node of Ray does not start")
                time.sleep(0.2)
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE)


def main() -> None:
    """Measure the sizes that the argument lists, in bytes."""
    sizes = json.loads(sys.argv[1])["sizes"]
    CLUSTER.take(None)
    try:
        import ray

        environment = {"env_vars": {"JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": os.pathsep.join(sys.path)}}
        worker, options = ray.remote(Echo), {"num_cpus": 0, "runtime_env": environment}
        actors = [worker.options(**options).remote() for _ in range(2)]
        ray.get([actor.take.remote([ray.put(parameters(1000))]) for actor in actors])
        called = calls(actors)
        near = [passage(size, actors, called["trip"]) for size in sizes]
        with other_node():
            far = worker.options(**options, resources={"far": 1}).remote()
            ray.get(far.take.remote([ray.put(parameters(1000))]))
            elsewhere = [journey(size, far) for size in sizes]
            ray.kill(far)
    finally:
        CLUSTER.release()
    print(json.dumps({"calls": called, "near": near, "far": elsewhere}))


if __name__ == "__main__":
    main()
