"""How good the choice of halving is: nine rates to the end, beside halving over the same points.

python -m benchmarks.halving [--seeds N] [--cache DIR]
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

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
SHORTER = (80, 40)  # rounds of sweeps that are judged too, on the same points
EPS = 1e-3  # with the default Mime with Adam diverges at nearly every rate on handwriting
METHODS = {
    "FedAvg": Setting(algorithm="fedavg"),
    "Mime, momentum": Setting(algorithm="mime", base="momentum"),
    "Mime, Adam": Setting(algorithm="mime", base="adam", optimizer=Optimizer(eps=EPS)),
}
WIDER: Grid = {"eta": tuple(10 * rate for rate in LIGHT["eta"])}  # the best rates on digits lie above one


class Choice(NamedTuple):
    """What halving chose, beside the best of the whole grid."""

    best: float
    chosen: float  # rates
    lost: float  # accuracy
    runs: float  # what halving cost


@dataclasses.dataclass(frozen=True)
class Case:
    """A task with the nine rates to choose from. Every quarter of rounds is a multiple of five."""

    task: str
    grid: Grid
    rounds: int
    population: Population | None = None

    def choices(self, method: Setting, seeds: int, cache: Path, rounds: int | None = None) -> list[Choice]:
        """One a seed, with ten clients a round and one pass over their data."""
        asked = dataclasses.replace(method, task=self.task, rounds=rounds or self.rounds, cohort=10, evaluate_every=5)
        settings = [dataclasses.replace(asked, seed=seed) for seed in range(seeds)]
        return [choice(setting, self.grid, cache, self.population) for setting in settings]


def choice(setting: Setting, grid: Grid, cache: Path, population: Population | None = None) -> Choice:
    """Train the whole grid, then halve: points come from the cache, and only those of the last rung may be chosen."""
    full = sweep(setting, grid, cache=cache, population=population)
    found = sweep(setting, grid, halving=True, cache=cache, population=population)
    left, after = found.trials, 0
    for rung in found.plan or []:
        left, after = halving.better(left, rung.points, after), rung.rounds
    halved = dataclasses.replace(found, trials=left)
    return Choice(full.best.values["eta"], halved.best.values["eta"], lost(full, halved), halved.runs)


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
    found: dict[int | None, list[Choice]] = {rounds: [] for rounds in (None, *SHORTER)}
    with tempfile.TemporaryDirectory() as temporary:
        for case, (name, method) in itertools.product(cases, METHODS.items()):
            for rounds, so_far in found.items():
                choices = case.choices(method, asked.seeds, asked.cache or Path(temporary), rounds)
                so_far.extend(choices)
                if rounds is None:
                    told = [(f"{each.best:.2g}", f"{each.chosen:.2g}", f"{100 * each.lost:.2f}") for each in choices]
                    table.add_row(case.task, name, *map(" ".join, zip(*told, strict=True)), *_figures(choices))
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    for rounds, choices in found.items():
        near, runs = _figures(choices)
        what = "In all" if rounds is None else f"Over {rounds} rounds"
        console.print(f"{what}: {near} within 0.5 points, at most {runs} runs", highlight=False)
    return 0


def _figures(choices: list[Choice]) -> tuple[str, str]:
    """How many are near the best, and the highest cost."""
    near = sum(each.lost <= NEAR for each in choices)
    return f"{near} of {len(choices)}", f"{max(each.runs for each in choices):.2f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
