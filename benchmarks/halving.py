"""How good the choice of halving is: nine rates to the end, beside halving over the same points.

python -m benchmarks.halving [--seeds N] [--cache DIR]
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedmime import data
from fedmime.data import Population
from fedmime.experiments import halving
from fedmime.experiments.grid import LIGHT, Grid
from fedmime.experiments.setting import Optimizer, Setting
from fedmime.experiments.sweep import Swept, sweep

NEAR = 0.005  # of accuracy
WRITERS = 300
EPS = 1e-3  # with the default Mime with Adam diverges at nearly every rate on handwriting
METHODS = {
    "FedAvg": Setting(algorithm="fedavg"),
    "Mime, momentum": Setting(algorithm="mime", base="momentum"),
    "Mime, Adam": Setting(algorithm="mime", base="adam", optimizer=Optimizer(eps=EPS)),
}
WIDER: Grid = {"eta": tuple(10 * rate for rate in LIGHT["eta"])}  # the best rates on digits lie above one


@dataclasses.dataclass(frozen=True)
class Case:
    """A task with the nine rates to choose from. A quarter of its rounds is a multiple of `evaluate_every`."""

    task: str
    grid: Grid
    rounds: int
    population: Population | None = None

    def setting(self, method: Setting, seed: int) -> Setting:
        """Ten clients a round, each with one pass over its data."""
        return dataclasses.replace(method, task=self.task, rounds=self.rounds, cohort=10, evaluate_every=5, seed=seed)


def compared(setting: Setting, grid: Grid, cache: Path, population: Population | None = None) -> tuple[Swept, Swept]:
    """The whole grid, and halving, which finds its points in the cache and may only choose what its last rung has."""
    full = sweep(setting, grid, cache=cache, population=population)
    found = sweep(setting, grid, halving=True, cache=cache, population=population)
    left, after = found.trials, 0
    for rung in found.plan or []:
        left, after = halving.better(left, rung.points, after), rung.rounds
    return full, dataclasses.replace(found, trials=left)


def lost(full: Swept, halved: Swept) -> float:
    """The accuracy that halving's choice is below the best of the grid."""
    return full.best.score(full.rounds) - halved.best.score(full.rounds)


def main(words: list[str]) -> int:
    """Print a table with a row for each task and method."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.halving", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cache", type=Path, help="where points are kept, so that a broken-off command goes on")
    asked = parser.parse_args(words)
    cases = [
        Case("handwriting-mlp", LIGHT, 120, data.handwriting(clients=WRITERS)),
        Case("digits-logistic", WIDER, 100),
    ]
    table = Table("task", "method", "best rates", "chosen rates", "points lost, by seed", "within 0.5", "most runs")
    everything: list[tuple[Swept, Swept]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for case, (name, method) in itertools.product(cases, METHODS.items()):
            settings = [case.setting(method, seed) for seed in range(asked.seeds)]
            pairs = [compared(s, case.grid, asked.cache or Path(temporary), case.population) for s in settings]
            table.add_row(case.task, name, *(_rates(found) for found in zip(*pairs, strict=True)), *_figures(pairs))
            everything += pairs
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    _, near, runs = _figures(everything)
    console.print(f"{near} within 0.5 points, at most {runs} runs", highlight=False)
    return 0


def _rates(found: Iterable[Swept]) -> str:
    return " ".join(f"{each.best.values['eta']:.2g}" for each in found)


def _figures(pairs: list[tuple[Swept, Swept]]) -> tuple[str, str, str]:
    """Points lost, how many are near the best, the cost."""
    missed = [lost(full, halved) for full, halved in pairs]
    near = sum(value <= NEAR for value in missed)
    runs = max(halved.runs for _, halved in pairs)
    return " ".join(f"{100 * value:.2f}" for value in missed), f"{near} of {len(missed)}", f"{runs:.2f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
