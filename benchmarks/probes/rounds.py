"""Runs of `fm.simulate` on a back end: what a round takes, what it compiles, and what Ray carries.

The argument lists the runs, which share this process, and those on Ray share their workers.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedmime as fm
from benchmarks.peers.measure import cpu_seconds
from benchmarks.probes.carried import Carried
from benchmarks.probes.compilations import counted, processes, programs
from benchmarks.probes.repeating import Repeating
from benchmarks.simulated import FIRST
from fedmime.experiments import tasks
from fedmime.vector import nbytes

BATCH = 10


def problem_of(model: str) -> Any:
    """A task's problem, or a perceptron with two hidden layers of a width: `dense-300`."""
    if model.startswith("dense-"):
        width = int(model.partition("-")[2])
        return fm.models.mlp(hidden=(width, width))
    return {"tiny": lambda: fm.models.logistic((8, 8, 1), 10), "char_lstm": lambda: fm.models.char_lstm(layers=2)}.get(
        model, lambda: tasks.get(model).problem()
    )()


def population_of(asked: dict[str, Any]) -> Any:
    """The task's own clients, so many equal ones, or, where there is no EMNIST, those of the embedded handwriting."""
    model = asked["model"]
    if "examples" in asked:
        return _equal(model, asked["clients"], asked["examples"])
    if model == "emnist-cnn" and asked["data_dir"] is None:
        return tasks.get("handwriting-mlp").clients(None)
    return tasks.get(model).clients(asked["data_dir"])


def _equal(model: str, clients: int, examples: int) -> Any:
    rng = np.random.default_rng(0)
    if model == "char_lstm":
        data = {name: rng.integers(1, 90, (examples, 80)).astype(np.int32) for name in ("x", "y")}
    else:
        side, classes = (8, 10) if model == "tiny" else (28, 62)
        x = rng.random((examples, side, side, 1), np.float32)
        data = {"x": x, "y": rng.integers(0, classes, examples).astype(np.int32)}
    return fm.data.from_arrays({f"c{i}": data for i in range(clients)})


def algorithm_of(name: str) -> Any:
    """The algorithms, at a rate that leaves random data alone."""
    momentum = fm.optimizers.momentum(0.9)
    return {
        "fedavg": lambda: fm.algorithms.fedavg(0.01),
        "mime": lambda: fm.algorithms.mime(momentum, 0.01),
        "server_only": lambda: fm.algorithms.server_only(momentum, 0.01),
    }[name]()


def run(asked: dict[str, Any], backend: Any, built: Path) -> dict[str, Any]:
    """Seconds of a round, of the clock, of all processes and of this one, after the first two and before the last."""
    problem, population, rounds = counted(problem_of(asked["model"]), built), population_of(asked), asked["rounds"]
    initial = jax.device_get(problem.init(jax.random.key(0)))
    marks: list[tuple[float, float, float, int]] = []
    work = {"steps": 0, "examples": 0}
    carried = Carried(nbytes(initial))

    def on_round(info: Any, _: Any) -> None:
        number = info.round + 1
        if FIRST < number < rounds:
            work.update(steps=work["steps"] + info.steps, examples=work["examples"] + info.examples)
        if number in (FIRST, rounds - 1):
            marks.append((time.perf_counter(), cpu_seconds(), time.process_time(), programs(built)))
            carried.clear() if number == FIRST else carried.stop()

    with carried if asked["backend"] == "ray" else contextlib.nullcontext():
        fm.simulate(
            algorithm_of(asked["algorithm"]), problem, population, rounds, asked["clients"], BATCH,
            steps=asked.get("steps"), initial=initial, evaluate_every=rounds, on_round=on_round, backend=backend,
        )  # fmt: skip
    if asked["backend"] == "ray" and processes(built) <= asked["workers"]:
        raise RuntimeError(f"only {processes(built)} of {asked['workers'] + 1} processes tell what they compile")
    counted_rounds = rounds - 1 - FIRST
    wall, cpu, driver, compiled = (b - a for a, b in zip(*marks, strict=True))
    per_round = {"wall": wall, "cpu": cpu, "driver": driver, **work, **carried.figures()}
    return {name: total / counted_rounds for name, total in per_round.items()} | {
        "compiled": compiled,
        "bytes": nbytes(initial),
        "load": _load(),
    }


def _load() -> float:
    return float(Path("/proc/loadavg").read_text().split()[0])


@contextlib.contextmanager
def backend_of(asked: dict[str, Any]) -> Iterator[Any]:
    """The back end of a run."""
    if asked["backend"] == "repeating":
        yield Repeating()
    elif asked["backend"] == "ray":
        with fm.backends.ray(workers=asked["workers"]) as workers:
            yield workers
    else:
        yield asked["backend"]


def main() -> None:
    """Measure the runs and print their figures."""
    runs = json.loads(sys.argv[1])["runs"]
    found = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as open_:
        built = Path(folder) / "built"  # one file for all runs: a later one may find all of its programs built
        for asked in runs:
            found.append(run(asked, open_.enter_context(backend_of(asked)), built))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
