"""Ray with two workers against `local`, interleaved; and, on paper, with more workers on more machines.

    python -m benchmarks.cluster [--only rounds constants model] [--repeats 5] [--data-dir DIRECTORY] [--quick]

`rounds` runs `fm.simulate` with a fresh cohort every round, each back end in a process of its own, in turn: medians of
wall and CPU seconds a round (of the driver, the workers and Ray itself), programs that were compiled after the second
round, and what the driver broadcasts and gathers. `constants` measures what `cluster_model.py` needs. `model` computes
from them where Ray would beat one machine of two cores: simulated, from constants of this machine and networks that are
assumed. Results are added to those of `python -m benchmarks`; the figure is `cluster.png` beside them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks import cluster_constants, cluster_figure, cluster_tables, report
from benchmarks.__main__ import WIDTH, finish, machine
from benchmarks.cluster_constants import Say
from benchmarks.probe import probe

PARTS = ("rounds", "constants", "model")
TASKS = {"handwriting-mlp": 60, "emnist-cnn": 7}  # rounds of a run
ALGORITHMS = {"fedavg": "FedAvg", "mime": "Mime"}
COHORT, WORKERS = 20, 2
FIGURES = (
    "wall",
    "cpu",
    "driver",
    "put_bytes",
    "put_seconds",
    "get_bytes",
    "get_seconds",
    "steps",
    "examples",
    "bytes",
)
FIGURE = "cluster.png"


def rounds(tasks: dict[str, int], repeats: int, data_dir: str | None, say: Say) -> list[dict[str, Any]]:
    """A row for each task and algorithm: medians of both back ends, which take turns."""
    found: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for repeat in range(repeats):
        for task, number in tasks.items():
            for backend in ("local", "ray"):
                asked = {"model": task, "backend": backend, "workers": WORKERS, "clients": COHORT, "rounds": number}
                asked["data_dir"] = None if task.startswith("handwriting") else data_dir
                runs = probe("rounds", {"runs": [asked | {"algorithm": name} for name in ALGORITHMS]}, timeout=3600)
                for name, run in zip(ALGORITHMS, runs, strict=True):
                    found.setdefault((task, name, backend), []).append(run)
                    told = f"{1e3 * run['wall']:.0f} ms, CPU {1e3 * run['cpu']:.0f} ms, load {run['load']:.1f}"
                    say(f"{repeat + 1} of {repeats}: {task}, {ALGORITHMS[name]} on {backend}: {told}")
    return [
        {"task": task, "algorithm": ALGORITHMS[name], **{b: _medians(found[task, name, b]) for b in ("local", "ray")}}
        for task in tasks
        for name in ALGORITHMS
    ]


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Medians, but the most programs that were compiled and the highest load."""
    highest = {name: max(run[name] for run in runs) for name in ("compiled", "load")}
    return {name: median(run[name] for run in runs) for name in FIGURES} | highest


def arguments(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data-dir", help="where EMNIST is; by default the embedded handwriting takes its place")
    parser.add_argument("--quick", action="store_true", help="small models and sizes only")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Measure what was asked for, and compute the model from what was ever measured into this directory."""
    asked = arguments(words)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    say: Say = lambda text: console.print(text, highlight=False, markup=False)
    results = report.load(asked.out)
    results["machine"] = machine()
    section = results.setdefault("cluster", {})
    if "rounds" in asked.only:
        tasks = {task: TASKS[task] for task in asked.tasks}
        before = [row for row in section.get("rounds", []) if row["task"] not in tasks]
        section["rounds"] = before + rounds(tasks, asked.repeats, asked.data_dir, say)
        finish(asked.out, results)
    if "constants" in asked.only:
        section["constants"] = cluster_constants.measure(asked.quick, say) | {"load": os.getloadavg()[0]}
        finish(asked.out, results)
    report.show(console, cluster_tables.tables(section))
    if "model" in asked.only and "constants" in section:
        cluster_figure.draw(section, asked.out / FIGURE)
        say(f"drawn: {asked.out / FIGURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
