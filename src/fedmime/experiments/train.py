"""One training run from a setting: open the data, build the algorithm, simulate, save."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmime import engine
from fedmime.aggregation import Aggregation
from fedmime.algorithms import Algorithm
from fedmime.data import Population
from fedmime.engine import Gate, Info, Participation, Run, Saving
from fedmime.errors import ConfigError
from fedmime.experiments import messages, recipes, tasks
from fedmime.experiments.setting import Setting, TrackerName, plain
from fedmime.experiments.warm_start import Start
from fedmime.models import Problem
from fedmime.origin import by_name
from fedmime.trackers import Callback


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A setting with everything it names: ready to run."""

    setting: Setting  # every default filled in
    problem: Problem
    population: Population
    algorithm: Algorithm
    aggregation: Aggregation | None = None
    start: Start | None = None  # of a warm start
    initial: Any = None  # its model, fitted to the problem

    @property
    def label(self) -> str:
        """What people call the method."""
        return recipes.label(self.setting)


def prepare(setting: Setting, data_dir: str | os.PathLike[str] | None = None, start: Start | None = None) -> Prepared:
    """Look everything up that a setting names; wrong numbers are refused before any data is read."""
    task = tasks.get(setting.task)
    full = recipes.resolved(setting, task)
    algorithm, aggregation = recipes.algorithm(full), messages.aggregator(full)
    problem, population = opened(full.task, data_dir)
    clients = int((population.sizes > 0).sum())
    if full.cohort is not None and full.cohort > clients:
        raise ConfigError(f"setting: cohort={full.cohort} exceeds the {clients} clients of {task.name}; lower it")
    initial = None if start is None else start.fitted(problem)
    return Prepared(full, problem, population, algorithm, aggregation, start, initial)


def opened(task: str, data_dir: str | os.PathLike[str] | None = None) -> tuple[Problem, Population]:
    """The problem and the population of a task, by name, so that workers can make them again."""
    population = _population(task, None if data_dir is None else os.path.abspath(data_dir))
    return by_name("fedmime.experiments.tasks:problem", task), population


@functools.lru_cache(maxsize=4)
def _population(task: str, data_dir: str | None) -> Population:
    """A task's data, opened once a process: methods that are compared share it."""
    return by_name("fedmime.experiments.tasks:population", task, data_dir)


@dataclasses.dataclass(frozen=True)
class Tracking:
    """The trackers of a run, and the names by which its configuration records them."""

    names: Sequence[str] = ()
    project: str | None = None
    callbacks: Sequence[Callback] = ()


def run(
    prepared: Prepared,
    run_dir: str | os.PathLike[str] | None = None,
    *,
    saving: Saving | None = None,
    gate: Gate | None = None,
    name: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    tracking: Tracking | None = None,
    on_round: Callable[[Info, Mapping[str, float]], None] | None = None,
    stop: Callable[[], int | None] | None = None,
    backend: Any = "local",
    devices: int | None = None,
    dry_run: bool = False,
) -> Run:
    """Simulate what was prepared. With a directory, the same call goes on with an earlier run there.

    A dry run only refuses what a run refuses before its first round.
    """
    s = prepared.setting
    assert s.rounds is not None
    assert s.cohort is not None
    asked = plain(s) | {
        "label": name or prepared.label,
        "data_dir": None if data_dir is None else os.fspath(data_dir),
        "checkpoint_every": (saving or Saving()).every,
        "keep": (saving or Saving()).keep,
    }
    if prepared.start is not None:
        asked["init"] = prepared.start.source
    tracking = tracking or Tracking()
    if tracking.names:
        asked |= {"track": list(tracking.names), "track_project": tracking.project}
    return engine.simulate(
        prepared.algorithm,
        prepared.problem,
        prepared.population,
        s.rounds,
        s.cohort,
        s.batch,
        s.epochs,
        s.steps,
        s.seed,
        weights=s.weights,
        participation=Participation(**dataclasses.asdict(s.participation)),
        evaluate_every=s.evaluate_every,
        evaluate_train=s.target_gap is not None,
        clients_every=(s.clients_every or 0) if run_dir is not None else None,
        initial=prepared.initial,
        run_dir=None if run_dir is None else Path(run_dir),
        saving=saving,
        gate=gate,
        aggregation=prepared.aggregation,
        config=asked,
        callbacks=tracking.callbacks,
        on_round=on_round,
        stop=stop,
        drift=s.drift,
        backend=backend,
        devices=devices,
        dry_run=dry_run,
        sources=recipes.sources(s),
    )


@dataclasses.dataclass(frozen=True)
class Beside:
    """What a run directory's configuration holds beside the setting."""

    label: str | None = None
    data_dir: Path | None = None
    init: str | None = None
    checkpoint_every: int = 50
    keep: int = 3
    track: tuple[TrackerName, ...] = ()
    track_project: str | None = None


def recorded(config: Mapping[str, Any], where: str) -> tuple[Setting, Beside]:
    """The setting that a run directory's configuration holds, and what stands beside it."""
    from fedmime.experiments.setting import merged

    names = {field.name for field in dataclasses.fields(Setting)}
    if "task" not in config:
        raise ConfigError(f"{where} was not made by the command line; call fm.simulate again with the same arguments")
    beside = {name: value for name, value in config.items() if name not in names}
    setting = {name: value for name, value in config.items() if name in names}
    return merged(Setting(), setting, where), merged(Beside(), beside, where)
