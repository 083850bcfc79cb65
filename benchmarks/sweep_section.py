"""The sweep section: what nine rates cost beside one run, and how good the choice of halving is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peer import ROOT, environment

TASKS = ("handwriting-logistic", "handwriting-mlp")
SEEDS, QUICK_SEEDS = 10, 2


def run(out: Path, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """One row a task, measured in a process of its own."""
    tasks, seeds = (TASKS[:1], QUICK_SEEDS) if quick else (TASKS, SEEDS)
    say(f"nine rates on {', '.join(tasks)}, {seeds} seeds")
    words = [sys.executable, "-m", "benchmarks.sweep_run", str(seeds), *tasks]
    done = subprocess.run(
        words, cwd=ROOT, env=environment(own=True), capture_output=True, text=True, timeout=7200, check=False
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode and not rows:
        return {"absent": (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:300]}
    return {"rows": rows, "seeds": seeds}
