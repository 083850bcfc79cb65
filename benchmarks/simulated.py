"""`simulate` with a fresh cohort every round, and start-up, of this tree against another one, interleaved.

    python -m benchmarks.simulated --against ../before/src [--models logistic mlp cnn char_lstm] [--repeats 3]

Every measurement is a process of its own; the two trees take turns, and medians of the repeats are printed with their
ratio. The other tree is the `src` folder of any commit, for example of `git worktree add ../before COMMIT`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent / "src"
ROUNDS = {"logistic": 60, "mlp": 40, "cnn": 8, "char_lstm": 8}
FIRST = 2  # rounds that are not counted: they compile
CLIENTS, COHORT, STEPS = 100, 20, 320  # figures are scaled to a round of so many local steps
README = """
import fedmime as fm
problem = fm.models.logistic(input_shape=(8, 8, 1), classes=10)
population = fm.data.digits(clients=50, alpha=0.1, seed=0)
algorithm = fm.algorithms.mime(fm.optimizers.momentum(beta=0.9), eta=0.3)
fm.simulate(algorithm, problem, population, rounds=30, cohort_size=10, batch_size=10, epochs=2, evaluate_every=10)
"""


def one(model: str, algorithm: str) -> dict[str, float]:
    """CPU and wall milliseconds of a round, in this process."""
    import numpy as np

    import fedmime as fm

    rng = np.random.default_rng(0)
    if model == "char_lstm":
        problem: Any = fm.models.char_lstm(layers=2)
        sizes = np.clip(rng.lognormal(np.log(18), 0.5, CLIENTS), 4, 60).astype(int)
        draw = lambda n: {name: rng.integers(1, 90, (n, 80)).astype(np.int32) for name in ("x", "y")}
    else:
        make = {"logistic": fm.models.logistic, "mlp": fm.models.mlp, "cnn": lambda: fm.models.cnn(dropout=0.0)}
        problem = make[model]()
        sizes = np.clip(rng.lognormal(np.log(165), 0.6, CLIENTS), 20, 500).astype(int)
        draw = lambda n: {
            "x": rng.random((n, 28, 28, 1), np.float32),
            "y": rng.integers(0, 62, n).astype(np.int32),
        }
    population = fm.data.from_arrays({f"c{i}": draw(n) for i, n in enumerate(sizes)})
    chosen = {
        "fedavg": fm.algorithms.fedavg(0.01),
        "mime": fm.algorithms.mime(fm.optimizers.momentum(0.9), 0.01),
    }[algorithm]
    marks = []
    fm.simulate(
        chosen, problem, population, ROUNDS[model], COHORT, 10, epochs=1,
        on_round=lambda info, _: marks.append((time.process_time(), time.perf_counter(), info.steps)),
    )  # fmt: skip
    marks = marks[FIRST:]
    steps = sum(mark[2] for mark in marks[1:])
    cpu, wall = (marks[-1][i] - marks[0][i] for i in (0, 1))
    return {"cpu": 1000 * STEPS * cpu / steps, "wall": 1000 * STEPS * wall / steps}


def measured(source: Path, words: list[str], **environment: str) -> float | dict[str, float]:
    """What a process with a tree's package prints, or how long it takes."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{HERE.parent}"} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    taken = time.perf_counter() - begun
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else taken


def compared(name: str, ours: list[float], theirs: list[float], unit: str) -> None:
    """Print medians and their ratio."""
    own, other = statistics.median(ours), statistics.median(theirs)
    print(f"{name:28} {own:9.3g} {unit}  before {other:9.3g} {unit}  ratio {own / other:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=list(ROUNDS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=2)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one(*asked.one)))
        return
    trees = {"ours": HERE, "theirs": asked.against.resolve()}
    for model in asked.models:
        for algorithm in ("fedavg", "mime"):
            words = ["-m", "benchmarks.simulated", "--against", ".", "--one", model, algorithm]
            found: dict[str, list[Any]] = {name: [] for name in trees}
            for _ in range(asked.repeats):
                for name, source in trees.items():
                    found[name].append(measured(source, words))
            for kind in ("cpu", "wall"):
                each = [[run[kind] for run in found[name]] for name in trees]
                compared(f"{algorithm} {model}, {kind}", each[0], each[1], "ms")
    times: dict[tuple[str, str], list[Any]] = {}
    for _ in range(asked.repeats):
        for name, source in trees.items():
            with tempfile.TemporaryDirectory() as folder:  # compiled programs and kernels go there
                for kind in ("empty", "warm"):
                    times.setdefault((name, kind), []).append(measured(source, ["-c", README], FEDMIME_CACHE=folder))
    for kind in ("empty", "warm"):
        compared(f"README example, {kind} cache", times["ours", kind], times["theirs", kind], "s ")


if __name__ == "__main__":
    main()
