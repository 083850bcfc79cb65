"""A worker's half of a sweep that is spread: it opens what the sweep is about by its names, and trains shares of it."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedmime import backends
from fedmime.errors import ConfigError
from fedmime.experiments import grid as grids
from fedmime.experiments import train, warm_start
from fedmime.experiments.grid import Values
from fedmime.experiments.setting import Setting, located, merged, plain
from fedmime.experiments.sweep_rounds import Lockstep, Stop
from fedmime.experiments.sweep_spread import Answer, Share
from fedmime.experiments.sweep_trial import Shelf
from fedmime.experiments.train import Prepared
from fedmime.experiments.warm_start import Start


def prepare(
    setting: Setting, values: Iterable[Values], data_dir: str | os.PathLike[str] | None, start: Start | None
) -> list[Prepared]:
    """The points of a grid, ready to run. Drift is not measured."""
    setting = dataclasses.replace(setting, drift=False)
    return [train.prepare(grids.at(setting, point), data_dir, start) for point in values]


def job(
    setting: Setting,
    values: Sequence[Values],
    evaluations: Iterable[int],
    data_dir: str | os.PathLike[str] | None,
    start: Start | None,
    cache: Path,
    devices: int,
) -> str:
    """What a sweep is about, in names and numbers, as JSON: what `train_share` takes.

    Args:
        values: the points of the grid.
        evaluations: rounds after which points are evaluated.
        start: the model that all points start from. Workers read it again.
        cache: the directory of the shelf.
        devices: of every worker.
    """
    given = {"setting": plain(located(setting)), "values": list(values), "evaluations": sorted(evaluations)}
    directory = None if data_dir is None else os.path.abspath(data_dir)
    given |= {"init": None if start is None else start.source}
    return json.dumps(given | {"data_dir": directory, "cache": os.path.abspath(cache), "devices": devices})


def train_share(job: str, share: Share, until: int, on_round: Callable[[], None], stop: Stop) -> Answer:
    """Train points until so many rounds are done or `stop` says so, and save them."""
    heard = _Heard()
    logging.root.addHandler(heard)
    try:
        steps = _opened(job)
        chosen = {place: steps.trials[place] for place in share}
        if any(trial.name != share[place] for place, trial in chosen.items()):
            raise ConfigError("sweep: a worker finds another task, other data or another precision by the same names")
        steps.advance(list(chosen.values()), until, on_round, stop)
    finally:
        logging.root.removeHandler(heard)
    for trial in chosen.values():
        trial.state = None  # it may be gone on with elsewhere
    return Answer({place: trial.facts() for place, trial in chosen.items()}, heard.said)


class _Heard(logging.Handler):
    """Collects what is logged for people, who do not look at workers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((record.name, record.getMessage()))


@functools.lru_cache(maxsize=1)
def _opened(job: str) -> Lockstep:
    """A sweep, opened once a process."""
    given: dict[str, Any] = json.loads(job)
    setting = merged(Setting(), given["setting"], "the sweep")
    prepared = prepare(setting, given["values"], given["data_dir"], warm_start.opened(given["init"]))
    shelf, local = Shelf(Path(given["cache"])), backends.local(given["devices"])
    return Lockstep(prepared, given["values"], given["evaluations"], shelf, local)
