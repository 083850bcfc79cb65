"""One run of `fm.simulate` on a generated population, with its times, compilations and peak memory."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import jax.monitoring
import numpy as np

import fedmime as fm
from benchmarks.peers.measure import cpu_seconds, peak_bytes

POOL = 4096  # examples that all clients' data are stretches of: a population costs nothing to hold


class Numbered(Sequence[str]):
    """Ids that are made when they are asked for."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return f"client {index}"


def population(clients: int) -> fm.data.Population:
    """Logistic-shaped clients with lognormal sizes, read from one pool at a place of their own."""
    random = np.random.default_rng(0)
    x = random.random((POOL, 28, 28, 1), dtype=np.float32)
    y = random.integers(0, 62, POOL).astype(np.int32)
    sizes = np.clip(random.lognormal(np.log(200) - 0.245, 0.7, clients).round(), 20, 500).astype(np.int64)
    starts = random.integers(0, POOL - 500, clients)

    def read(i: int) -> dict[str, np.ndarray]:
        part = slice(starts[i], starts[i] + sizes[i])
        return {"x": x[part], "y": y[part]}

    fields = {"x": fm.data.Field(np.dtype(np.float32), (28, 28, 1)), "y": fm.data.Field(np.dtype(np.int32))}
    return fm.data.Population("generated", Numbered(clients), sizes, fields, read, identity=f"benchmark {clients}")


def main() -> None:
    """Run what the argument says and print what it took."""
    asked = json.loads(sys.argv[1])
    problem = {"logistic": fm.models.logistic, "mlp": fm.models.mlp}[asked["model"]]()
    compiled: list[str] = []

    def on_compiled(name: str, seconds: float, **_: Any) -> None:
        if name.endswith("backend_compile_duration"):
            compiled.append(name)

    jax.monitoring.register_event_duration_secs_listener(on_compiled)
    ends, programs, cpu = [time.perf_counter()], [0], [cpu_seconds()]

    def on_round(info: Any, measured: Any) -> None:
        ends.append(time.perf_counter())
        programs.append(len(compiled))
        cpu.append(cpu_seconds())

    started = time.perf_counter()
    fm.simulate(
        fm.algorithms.mime(fm.optimizers.momentum(), eta=0.01) if asked["mime"] else fm.algorithms.fedavg(eta=0.01),
        problem,
        population(asked["population"]),
        rounds=asked["rounds"],
        cohort_size=asked["clients"],
        batch_size=10,
        epochs=asked["epochs"],
        devices=asked["devices"],
        on_round=on_round,
    )
    print(
        json.dumps(
            {
                "wall": median(np.diff(ends)[2:].tolist()),
                "cpu": median(np.diff(cpu)[2:].tolist()),
                "first": ends[1] - started,
                "memory": peak_bytes(),
                "recompiled": programs[-1] - programs[2],
            }
        )
    )


if __name__ == "__main__":
    main()
