"""The processes section: `fedmime sweep --workers 2` beside `--workers 1`, in turn, as a user starts them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peer import ROOT, PeerError, environment

TASK = "handwriting-mlp"
ROUNDS, QUICK_ROUNDS = 100, 20
REPEATS, QUICK_REPEATS = 2, 1
WARM = 2  # rounds of the sweeps that fill the cache of compiled programs, which both ways share as they do for users
WAYS = (1, 2)


def run(out: Path, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Wall seconds of both ways, from start to exit; the ratio is the median of those of each turn."""
    rounds, repeats = (QUICK_ROUNDS, QUICK_REPEATS) if quick else (ROUNDS, REPEATS)
    say(f"nine rates on {TASK}, {rounds} rounds, in one process and in two, {repeats} times in turn")
    seconds: dict[int, list[float]] = {workers: [] for workers in WAYS}
    accuracies: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as cache:
        for workers in WAYS:
            sweep(workers, WARM, cache)
        for _ in range(repeats):
            for workers in WAYS:
                took, accuracies[workers] = sweep(workers, rounds, cache)
                seconds[workers].append(took)
                say(f"--workers {workers}: {took:.1f} s")
    return {
        "task": TASK,
        "rounds": rounds,
        "one": median(seconds[1]),
        "two": median(seconds[2]),
        "ratio": median(two / one for one, two in zip(seconds[1], seconds[2], strict=True)),
        "apart": max(abs(a - b) for a, b in zip(accuracies[1], accuracies[2], strict=True)),
    }


def sweep(workers: int, rounds: int, cache: str) -> tuple[float, list[float]]:
    """The seconds of one command, and the accuracy of each point after its last round."""
    with tempfile.TemporaryDirectory() as out:
        words = ["sweep", "--task", TASK, "--algorithm", "fedavg", "--light", "--workers", str(workers), "--out", out]
        words += ["--rounds", str(rounds), "--evaluate-every", str(rounds), "--quiet", "--json"]
        command = [sys.executable, "-c", "from fedmime.cli.main import script; script()", *words]
        variables = environment(own=True) | {"JAX_COMPILATION_CACHE_DIR": cache}
        start = time.perf_counter()
        done = subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=1800, check=False
        )
        took = time.perf_counter() - start
    if done.returncode:
        raise PeerError(f"sweep: {(done.stderr.strip().splitlines() or ['it printed nothing'])[-1][:300]}")
    return took, [point["accuracy"][-1] for point in json.loads(done.stdout)["points"]]
