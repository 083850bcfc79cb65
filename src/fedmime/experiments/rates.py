"""The rate at which a method reaches its target in the fewest rounds, in the mean over seeds."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fedmime.data import Population
from fedmime.errors import ConfigError
from fedmime.experiments import grid as grids
from fedmime.experiments.setting import plain
from fedmime.experiments.sweep import Progress, sweep
from fedmime.experiments.sweep_trial import Trial
from fedmime.experiments.train import Prepared
from fedmime.report import target as targets
from fedmime.report.target import Target


@dataclasses.dataclass(frozen=True)
class Tried:
    """A method at several rates."""

    rates: tuple[float, ...]
    rounds: list[list[int | None]]  # to the target, for every rate and seed; None where it was not reached
    last: list[list[float]]  # how far from the target each was after its last round; infinite if it diverged

    @property
    def best(self) -> float:
        """The rate at which most seeds reach the target, and soonest; if none does, that which comes closest."""
        return min(zip(self.rates, self.rounds, self.last, strict=True), key=lambda each: _rank(*each[1:]))[0]

    @property
    def at_edge(self) -> bool:
        """Whether a rate outside those tried may be better."""
        return bool(grids.edges({"eta": self.rates}, {"eta": self.best}))

    def words(self) -> list[str]:
        """At every rate the mean over seeds, how many got there if not all did, or how far off they ended if none."""
        return [_words(*each) for each in zip(self.rounds, self.last, strict=True)]

    def verdict(self) -> str:
        """The best rate."""
        return f"{self.best:g}" + (" (edge)" if self.at_edge else "")

    def facts(self) -> dict[str, Any]:
        """As JSON can write it."""
        return dataclasses.asdict(self) | {"best": self.best, "at_edge": self.at_edge}


def tried(
    label: str,
    prepared: Sequence[Prepared],
    rates: Sequence[float],
    data_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    stop: Callable[[], int | None] | None = None,
) -> Tried:
    """Run a method, prepared for every seed, at every rate for all of its rounds."""
    rounds, last = [], []
    for each in prepared:
        target = targets.asked(plain(each.setting))
        if target is None:
            raise ConfigError(f"rates: {label} has no target to reach; give one")
        watched = each.population if target.optimum is None else _tested_on_itself(each.population)
        grid = {"eta": tuple(rates)}
        if target.optimum is None and not _has_accuracy(each):
            raise ConfigError(
                f"rates: {label} has an accuracy as target, and its problem reports none; give target_gap"
            )
        shared = {"data_dir": data_dir, "start": each.start, "progress": progress, "stop": stop}
        swept = sweep(each.setting, grid, population=watched, **shared)
        histories = [_history(trial, target) for trial in swept.trials]
        rounds.append([target.rounds(history) for history in histories])
        last.append([_distance(history, target) for history in histories])
    return Tried(tuple(rates), _by_rate(rounds), _by_rate(last))


def _has_accuracy(prepared: Prepared) -> bool:
    """Whether the problem reports an accuracy."""
    problem, population = prepared.problem, prepared.population
    columns = population.client_at(int(np.argmax(population.sizes)))
    model = jax.eval_shape(problem.init, jax.eval_shape(jax.random.key, 0))
    return "accuracy" in jax.eval_shape(problem.metrics, model, {name: c[:2] for name, c in columns.items()})


def _history(trial: Trial, target: Target) -> dict[str, np.ndarray]:
    """What a sweep measured, under the names of a run's history."""
    values = trial.accuracy if target.optimum is None else trial.loss
    return {"round": np.asarray(trial.rounds) - 1, target.metric: np.asarray(values)}


def _distance(history: dict[str, np.ndarray], target: Target) -> float:
    measured = target.measured(history)
    last = float(measured[-1]) if len(measured) else np.nan
    return abs(last - target.value) if np.isfinite(last) else np.inf


def _by_rate(by_seed: list[list[Any]]) -> list[list[Any]]:
    return [list(seeds) for seeds in zip(*by_seed, strict=True)]


def _tested_on_itself(population: Population) -> Population:
    """The clients with all of their own examples as the test set, so that a sweep measures the training loss."""
    return Population(
        population.name,
        population.ids,
        population.sizes,
        population.fields,
        population.client_at,
        identity=population.identity,
        test=population.pool,
        resident=population.resident,
    )


def _known(rounds: Sequence[int | None]) -> list[int]:
    return [each for each in rounds if each is not None]


def _rank(rounds: Sequence[int | None], last: Sequence[float]) -> tuple[int, float]:
    """Lower is better."""
    known = _known(rounds)
    return -len(known), float(np.mean(known if known else last))


def _words(rounds: Sequence[int | None], last: Sequence[float]) -> str:
    known = _known(rounds)
    if not known:
        return f"{np.mean(last):.2g} off"
    return f"{np.mean(known):.0f}" + (f" ({len(known)}/{len(rounds)})" if len(known) < len(rounds) else "")
