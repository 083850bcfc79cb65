"""What a reproduction is asked for, and how methods are tuned and repeated in all of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedmime.errors import Stopped
from fedmime.experiments import grid as grids
from fedmime.experiments.grid import Grid, Values
from fedmime.experiments.setting import Setting
from fedmime.experiments.sweep import Progress, Swept, sweep
from fedmime.experiments.sweep_files import write_json
from fedmime.experiments.sweep_trial import Trial
from fedmime.runs import identity

ScaleName = Literal["full", "small", "smoke"]


@dataclasses.dataclass(frozen=True)
class Order:
    """A reproduction's arguments."""

    scale: ScaleName
    out: Path
    data_dir: Path | None = None
    seeds: int | None = None  # by default what the scale says
    columns: tuple[str, ...] | None = None  # of the table of accuracies; by default all
    share: float = 1.0  # of the scale's rounds, in the table of accuracies
    progress: Progress | None = None
    stop: Callable[[], int | None] | None = None
    publish: Callable[[dict[str, Any]], object] = lambda _: None
    """Puts data on the page before all of it is there, for what takes long after the first results."""

    def sweep(self, setting: Setting, grid: Grid, halving: bool = False) -> Swept:
        """A sweep whose points are kept in the order's directory."""
        return sweep(
            setting,
            grid,
            halving=halving,
            data_dir=self.data_dir,
            cache=self.out / "cache",
            progress=self.progress,
            stop=self.stop,
        )

    def kept(self, facts: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """What an earlier call computed for the same facts, else what `compute` gives now: plain data."""
        file = self.out / "cache" / f"{identity.digest(facts)[:20]}.json"
        try:
            return json.loads(file.read_bytes())
        except (FileNotFoundError, ValueError):  # not there yet, or damaged
            write_json(file, compute())
        return json.loads(file.read_bytes())

    def counter(self, what: str, total: int) -> Callable[[], None]:
        """To be called after each of so many pieces of work: shows progress, and stops where a signal asks for it."""
        done = itertools.count(1)

        def tick() -> None:
            if self.progress is not None:
                self.progress(what, next(done), total)
            if signal := self.stop and self.stop():
                raise Stopped(f"reproduce: stopped by signal {signal}; the same command goes on", signal)

        return tick

    def task(self, model: str) -> str:
        """The published data where a directory is given, else what comes with the package."""
        if self.scale == "smoke":
            return "digits-logistic"
        return f"{'handwriting' if self.data_dir is None else 'emnist'}-{model}"


class Tuned(NamedTuple):
    """The values chosen for a method, and how."""

    values: Values
    score: float | None  # None if every point diverged
    tried: list[dict[str, Any]]  # points with their scores
    at_edge: list[str]
    runs: float


def tune(order: Order, setting: Setting, grid: Grid, finer: bool, beyond: int = 0) -> Tuned:
    """The best point by successive halving; that with the lowest rate if every point diverges.

    Args:
        finer: try the rates half a grid step below and above the best one, too.
        beyond: how many further rates may be tried outside of the grid, while the best one is its highest or lowest.
    """
    found = [order.sweep(setting, grid, halving=True)]
    if found[0].lost:  # even the lowest rate is too high for the method as it is
        least = min(found[0].trials, key=lambda trial: trial.values["eta"])
        return Tuned(least.values, None, [_told(found[0], each) for each in found[0].trials], [], found[0].runs)
    best, rates = found[0].best, list(grid["eta"])

    def try_rates(more: Sequence[float]) -> Trial:
        """The best point so far, after a sweep over more rates with the best point's other values."""
        found.append(order.sweep(setting, {name: (value,) for name, value in best.values.items()} | {"eta": more}))
        rivals = [trial for trial in found[-1].trials if not trial.lost(found[-1].rounds)]
        return max([best, *rivals], key=lambda trial: trial.score(found[0].rounds))

    for _ in range(beyond):
        outside = grids.beyond(rates, best.values["eta"])
        if outside is None:
            break
        rates.append(outside)
        best = try_rates([outside])
    edge = grids.edges({**grid, "eta": rates}, best.values)
    if finer:
        best = try_rates(grids.finer(best.values["eta"]))
    tried = [_told(swept, trial) for swept in found for trial in swept.trials]
    return Tuned(best.values, best.score(found[0].rounds), tried, edge, sum(swept.runs for swept in found))


def _told(swept: Swept, trial: Trial) -> dict[str, Any]:
    done, lost = min(trial.done, swept.rounds), trial.lost(swept.rounds)
    return {**trial.values, "score": swept.score(trial), "rounds": done, "diverged": lost}


def repeat(order: Order, setting: Setting, values: Values, seed: int) -> Trial:
    """A method at its values with one seed, to the end."""
    at = dataclasses.replace(grids.at(setting, values), seed=seed)
    return order.sweep(at, {name: (value,) for name, value in values.items()}).trials[0]


def curve(trial: Trial, rounds: list[int]) -> list[float | None]:
    """The accuracies after given rounds, None where they were not measured: after a divergence."""
    known: Mapping[int, float] = dict(zip(trial.rounds, trial.accuracy, strict=True))
    return [known.get(t) for t in rounds]


def array(curves: list[list[float | None]]) -> np.ndarray:
    """Curves of several seeds as rows, NaN where there is nothing."""
    return np.asarray([[np.nan if value is None else value for value in row] for row in curves], float)
