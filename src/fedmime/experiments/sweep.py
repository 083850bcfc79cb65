"""A sweep: one setting at every point of a grid. A process compiles once and lays every cohort out once."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedmime.data import Population
from fedmime.engine.backends.specification import Choice
from fedmime.errors import ConfigError, Diverged, Stopped
from fedmime.experiments import grid as grids
from fedmime.experiments import halving as halvings
from fedmime.experiments import sweep_share
from fedmime.experiments import sweep_ways as ways
from fedmime.experiments.grid import Grid
from fedmime.experiments.halving import Rung
from fedmime.experiments.setting import Setting, plain
from fedmime.experiments.sweep_rounds import Lockstep
from fedmime.experiments.sweep_spread import Spread
from fedmime.experiments.sweep_trial import Shelf, Trial
from fedmime.experiments.sweep_ways import Ways
from fedmime.experiments.warm_start import Start
from fedmime.files import require_writable

__all__ = ["Swept", "sweep"]

Progress = Callable[[str, int, int], None]  # what, done, in all


@dataclasses.dataclass(frozen=True)
class Swept:
    """The outcome of a sweep."""

    setting: Setting  # every default filled in; the values of the first point
    label: str
    grid: dict[str, tuple[float, ...]]
    rounds: int
    trials: list[Trial]  # in the order of the grid
    plan: list[Rung] | None  # of halving
    runs: float  # what it cost, in full runs

    @property
    def best(self) -> Trial:
        """The point that scored highest of those that went all the way."""
        if self.lost:
            raise Diverged(f"sweep: every point of {self.label} diverged; lower the rates")
        whole = [trial for trial in self.trials if trial.done >= self.rounds and not trial.lost(self.rounds)]
        return max(whole or self.trials, key=lambda trial: trial.score(self.rounds))

    @property
    def lost(self) -> bool:
        """Whether every point diverged."""
        return all(trial.lost(self.rounds) for trial in self.trials)

    @property
    def at_edge(self) -> list[str]:
        """Axes at whose end the best point lies."""
        return grids.edges(self.grid, self.best.values)

    @property
    def metric(self) -> str:
        """What points are compared by: the accuracy, or the loss of a problem that reports no accuracy."""
        return "accuracy" if any(trial.accuracy for trial in self.trials) else "loss"

    def score(self, trial: Trial) -> float | None:
        """Its smoothed accuracy, or loss, where it was left; None if it diverged."""
        return trial.measured(self.rounds) if math.isfinite(trial.score(self.rounds)) else None

    def words(self, score: float | None) -> str:
        """A score as people read it."""
        if score is None:
            return "–"
        return f"{score:.2%}" if self.metric == "accuracy" else f"{score:.4g}"

    def facts(self) -> dict[str, Any]:
        """As JSON can write it."""
        lost = self.lost
        told = [{"score": self.score(trial), "stopped": trial.done < self.rounds} for trial in self.trials]
        return {
            "label": self.label,
            "setting": plain(self.setting),
            "grid": {name: list(values) for name, values in self.grid.items()},
            "rounds": self.rounds,
            "metric": self.metric,
            "halving": None if self.plan is None else [rung._asdict() for rung in self.plan],
            "runs": self.runs,
            "best": None if lost else self.best.values,
            "best_score": None if lost else self.score(self.best),
            "at_edge": [] if lost else self.at_edge,
            "points": [trial.facts() | more for trial, more in zip(self.trials, told, strict=True)],
        }


def sweep(
    setting: Setting,
    grid: Grid,
    *,
    halving: bool = False,
    workers: int | None = None,
    backend: Choice = "local",
    data_dir: str | os.PathLike[str] | None = None,
    start: Start | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    stop: Callable[[], int | None] | None = None,
    population: Population | None = None,
    dry_run: bool = False,
) -> Swept:
    """Train at every point of a grid and compare the accuracies on the test set, or the losses where there are none.

    Args:
        grid: values for numbers of the setting, such as `{"eta": (1, 0.1), "optimizer.eps": (1e-3, 1e-7)}`.
        halving: after a quarter of the rounds go on with the better third, at a cost of 4.5 runs for nine points.
        workers: processes on this machine, which divide points and cores among them; by default what is faster.
        backend: `"local"`, or `fm.backends.ray(…)`, whose workers divide the points.
        start: the model that every point starts from, see `warm_start.opened`.
        cache: a directory where points are kept by their configuration; a sweep broken off goes on from there.
        progress: called with what is being done and how many rounds of all points are done.
        say: called with a line about how points are spread over processes.
        stop: called after every round; the number of a signal ends the sweep, saved.
        population: clients to train on, instead of the task's. They stay in this process.
        dry_run: refuse what a sweep refuses before its first round; nothing is trained or written, and `runs` is what
            the sweep will cost.
    """
    axes = grids.checked(grid)
    values = grids.points(axes)
    prepared = sweep_share.prepare(setting, values, data_dir, start)
    if population is not None:
        prepared = [dataclasses.replace(each, population=population) for each in prepared]
    s = prepared[0].setting
    assert s.rounds is not None
    if prepared[0].population.test is None:
        raise ConfigError(f"sweep: the data of task {s.task!r} has no test set to compare points on")
    plan = halvings.rungs(len(values), s.rounds) if halving else None
    ends = [s.rounds] if plan is None else [rung.rounds for rung in plan]
    every = s.evaluate_every if plan is None else halvings.due(plan, s.evaluate_every)
    evaluations = {*range(every, s.rounds + 1, every), *ends}
    cost = float(len(values)) if plan is None else halvings.cost(plan)
    total = round(s.rounds * cost)
    team = ways.staff(backend, workers, len(values), total, named=population is None)
    with contextlib.ExitStack() as held:
        directory = None if cache is None or dry_run else Path(cache)
        if directory is None and team.start is not None and not dry_run:  # points that are spread need a shelf
            directory = Path(held.enter_context(tempfile.TemporaryDirectory()))
        steps = Lockstep(prepared, values, evaluations, Shelf(directory), team.backend)
        if dry_run:
            if cache is not None:
                require_writable(Path(cache))
            return Swept(s, prepared[0].label, axes, s.rounds, steps.trials, plan, cost)
        spread = None
        if team.start is not None and directory is not None:
            job = sweep_share.job(setting, values, evaluations, data_dir, start, directory, team.devices)
            spread = Spread(steps.trials, functools.partial(team.start, job, directory))
        both = held.enter_context(contextlib.closing(Ways(steps, spread, team, say)))
        tell = None if progress is None else functools.partial(progress, prepared[0].label)
        runs = _climb(both, steps.trials, plan or [Rung(len(values), s.rounds)], tell, total, stop)
    return Swept(s, prepared[0].label, axes, s.rounds, steps.trials, plan, runs / s.rounds)


def _climb(
    steps: Ways,
    trials: Sequence[Trial],
    plan: Iterable[Rung],
    tell: Callable[[int, int], None] | None,
    total: int,
    stop: Callable[[], int | None] | None,
) -> int:
    """Take the better trials from rung to rung; gives the rounds of all trials together, cached ones included."""
    left = list(trials)
    done = 0

    def on_round() -> None:
        nonlocal done
        done += 1
        if tell is not None:
            tell(min(done, total), total)

    before, cost = 0, 0
    for rung in plan:
        left = halvings.better(left, rung.points, before)
        fresh = [trial.done for trial in left]
        if signal := steps.advance(left, rung.rounds, on_round, stop):
            raise Stopped(f"sweep: stopped by signal {signal}; the same command goes on", signal)
        done += sum(max(0, min(at, rung.rounds) - before) for at in fresh)
        cost += sum(max(0, min(trial.done, rung.rounds) - before) for trial in left)
        before = rung.rounds
    return cost
