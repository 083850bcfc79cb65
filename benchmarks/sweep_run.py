"""A nine-point sweep beside one run, in one process: prints one JSON line a task.

python -m benchmarks.sweep_run SEEDS TASK...
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.halving import NEAR, choice, lost
from fedmime.experiments import train
from fedmime.experiments.grid import LIGHT, at
from fedmime.experiments.setting import Setting
from fedmime.experiments.sweep import sweep

ROUNDS, EVERY = 64, 8


def cpu(work: Callable[[], Any]) -> tuple[Any, float]:
    """What a call gives and its CPU seconds, compilation included."""
    jax.clear_caches()
    gc.collect()
    start = time.process_time()
    return work(), time.process_time() - start


def setting(task: str, seed: int = 0) -> Setting:
    """FedAvg on the embedded handwriting, the task's own cohort and batch."""
    return Setting(task=task, algorithm="fedavg", rounds=ROUNDS, evaluate_every=EVERY, seed=seed, drift=False)


def measure(task: str, seeds: int) -> dict[str, Any]:
    """Costs in single runs, agreement with separate runs, and how good halving's choice is over seeds."""
    train.prepare(setting(task))  # the data is there before the clock starts
    run = at(setting(task), {"eta": 0.1})
    one, single = cpu(lambda: train.run(train.prepare(run)))
    full, whole = cpu(lambda: sweep(setting(task), LIGHT, workers=1))
    less, halved = cpu(lambda: sweep(setting(task), LIGHT, halving=True, workers=1))
    accuracy = one.history["test_accuracy"]
    same = next(trial for trial in full.trials if abs(trial.values["eta"] - 0.1) < 1e-9)
    apart = float(np.abs(np.asarray(same.accuracy) - accuracy[~np.isnan(accuracy)]).max())
    missed = [lost(full, less), *(_choice(task, seed) for seed in range(1, seeds))]
    return {
        "task": task,
        "single": single,
        "whole": whole / single,
        "halved": halved / single,
        "apart": apart,
        "lost": missed,
        "near": sum(value <= NEAR for value in missed),
    }


def _choice(task: str, seed: int) -> float:
    with tempfile.TemporaryDirectory() as cache:
        return choice(setting(task, seed), LIGHT, Path(cache)).lost


if __name__ == "__main__":
    for name in sys.argv[2:]:
        print(json.dumps(measure(name, int(sys.argv[1]))), flush=True)
