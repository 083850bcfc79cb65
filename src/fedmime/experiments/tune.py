"""Tune without clients: choose the rate by centralized training on a small sample, and carry it over."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedmime.data import Population, from_arrays
from fedmime.errors import ConfigError
from fedmime.experiments import recipes, train
from fedmime.experiments.grid import LIGHT
from fedmime.experiments.setting import Inner, Optimizer, Own, Setting
from fedmime.experiments.sweep import Progress, Swept, sweep
from fedmime.randomness import generator
from fedmime.validation import count

_SAMPLE = 40  # stream of the draw of clients

__all__ = ["Tuned", "tune"]


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A rate chosen centrally, and beside it the federated one where that was looked for."""

    eta: float
    central: Swept
    federated: Swept | None

    def facts(self) -> dict[str, Any]:
        """The comparison as plain data."""
        metric = self.central.metric
        found: dict[str, Any] = {"eta": self.eta, f"central_{metric}": self.central.score(self.central.best)}
        found["at_edge"] = self.central.at_edge
        if self.federated is None:
            return found
        best, rounds = self.federated.best, self.federated.rounds
        carried = next(trial for trial in self.federated.trials if trial.values["eta"] == self.eta)
        there = None if self.federated.lost else self.federated.score(best)
        score = None if carried.done < rounds else self.federated.score(carried)
        lost = None if score is None or there is None else there - score
        return found | {
            "federated_eta": best.values["eta"],
            "decades_apart": abs(math.log10(self.eta / best.values["eta"])),
            f"federated_{metric}": there,
            f"carried_{metric}": score,
            "carried_diverged": carried.lost(rounds),
            "lost": lost if lost is None or metric == "accuracy" else -lost,
        }


def tune(
    setting: Setting,
    rates: Sequence[float] = tuple(LIGHT["eta"]),
    *,
    clients: int = 20,
    rounds: int = 20,
    check: bool = False,
    data_dir: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    stop: Callable[[], int | None] | None = None,
    dry_run: bool = False,
) -> Tuned:
    """Choose η for a setting by the centralized optimizer on the pooled data of a few clients.

    Args:
        clients: how many clients' data the server has at hand.
        rounds: of centralized training, each of as many examples as a cohort has.
        check: also sweep the federated setting over the same rates, to see how far the choice is from its optimum.
        dry_run: refuse what tuning refuses before its first round; nothing is trained, so the rate is none to use.
    """
    count("tune", "clients", clients, least=1)
    count("tune", "rounds", rounds, least=1)
    prepared = train.prepare(setting, data_dir)
    full = prepared.setting
    if full.eta is None:
        raise ConfigError(f"tune: {full.algorithm!r} has its own rate, so there is none to choose")
    if prepared.population.test is None:
        raise ConfigError(f"tune: the data of task {full.task!r} has no test set to compare rates on")
    shared = {"data_dir": data_dir, "cache": cache, "progress": progress, "stop": stop, "dry_run": dry_run}
    base, numbers = _of_clients(full)
    central = dataclasses.replace(
        full, algorithm="centralized", base=base, split=False, state="fixed", rounds=rounds, cohort=clients, epochs=1
    )
    central = dataclasses.replace(central, optimizer=numbers, client=Inner())
    central = dataclasses.replace(central, steps=None, evaluate_every=min(full.evaluate_every, max(1, rounds // 4)))
    sample = _sample(prepared.population, clients, full.seed)
    found = sweep(central, {"eta": tuple(rates)}, halving=True, population=sample, **shared)
    federated = sweep(full, {"eta": tuple(rates)}, **shared) if check else None
    return Tuned(found.best.values["eta"], found, federated)


def _of_clients(full: Setting) -> tuple[Own | None, Optimizer]:
    """The optimizer that clients of a method run, and its numbers; `base` may be the server's."""
    inner = full.client
    if recipes.tracking(full):
        return full.base, full.optimizer
    if inner.optimizer is None:
        return "sgd", full.optimizer if full.base == "sgd" else Optimizer()
    numbers = {field.name: getattr(inner, field.name) for field in dataclasses.fields(Optimizer)}
    return inner.optimizer, Optimizer(**numbers)


def _sample(population: Population, clients: int, seed: int) -> Population:
    """The data of a few clients, with the population's test set."""
    able = np.flatnonzero(population.sizes)
    if clients > len(able):
        raise ConfigError(f"tune: clients={clients} exceeds the {len(able)} clients with examples; lower it")
    chosen = np.sort(generator(seed, 0, _SAMPLE).choice(able, clients, replace=False))
    columns = {population.ids[int(i)]: population.client_at(int(i)) for i in chosen}
    return from_arrays(columns, test=population.test, name=f"{population.name}, {clients} clients")
