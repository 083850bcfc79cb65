"""A point of a sweep: what it has reached so far, and its place on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedmime.algorithms.algorithm import State
from fedmime.engine.memory import empty_memory
from fedmime.experiments.grid import Values
from fedmime.files import whole_file
from fedmime.runs.disk_memory import DiskMemory

_log = logging.getLogger(__name__)

SMOOTHED = 3  # evaluations that a score is the mean of


@dataclasses.dataclass(eq=False)
class Trial:
    """The history of a point; `state` is where it goes on from."""

    values: Values
    name: str  # the digest of everything that decides its numbers
    rounds: list[int] = dataclasses.field(default_factory=list)  # after which it was evaluated
    accuracy: list[float] = dataclasses.field(default_factory=list)
    loss: list[float] = dataclasses.field(default_factory=list)
    done: int = 0  # rounds
    abandoned: int = 0  # rounds in a row
    diverged: bool = False
    state: State | None = None

    def score(self, until: int) -> float:
        """How good a point is after a round: more is better. Infinitely bad if it had diverged.

        It is the mean of the last accuracies; of a problem that reports none, that of the last losses, negated.
        """
        found = self.measured(until)
        return -math.inf if self.lost(until) or not math.isfinite(found) else found if self.accuracy else -found

    def measured(self, until: int) -> float:
        """The mean of the last accuracies measured by a round, or of the losses; NaN if there are none."""
        values = self.accuracy or self.loss
        seen = [value for t, value in zip(self.rounds, values, strict=False) if t <= until]
        return float(np.mean(seen[-SMOOTHED:])) if seen else math.nan

    def lost(self, until: int) -> bool:
        """Whether it had diverged by a round; another sweep may have taken it further."""
        return self.diverged and self.done <= until

    def unfinished(self, until: int) -> bool:
        """Whether there is anything left to train until so many rounds are done."""
        return self.done < until and not self.diverged

    def facts(self) -> dict[str, Any]:
        """What JSON can hold of it: everything but the state."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "state"}

    def take(self, facts: Mapping[str, Any]) -> None:
        """The opposite of `facts`. The state that belongs to them is on the shelf."""
        for name, value in facts.items():
            setattr(self, name, value)
        self.state = None


class Shelf:
    """Trials in a directory, each in one file that is replaced whole. Without a directory nothing is kept."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def recall(self, trial: Trial) -> None:
        """Bring a trial's history to where it was saved, without its state. Damage is left to `load`, which tells."""
        if self._holds(trial):
            try:
                with _opened(self._file(trial)) as found:
                    trial.take(_facts(found, trial)[0])
            except OSError:
                raise
            except Exception:  # damaged files make the reader fail in many ways
                return

    def load(self, trial: Trial, start: State, blank: Any) -> None:
        """Bring a trial to where it was saved, or to the start."""
        index: dict[int, int] = {}
        trial.take(Trial(trial.values, trial.name).facts())
        trial.state = start
        if self._holds(trial):
            try:
                facts, index, repeats, carried = _read(self._file(trial), trial, (start.server, start.aggregation))
            except OSError:
                raise
            except Exception:
                _log.warning("%r is damaged; the point is trained again", str(self._file(trial)))
            else:
                trial.take(facts)
                server, aggregation = carried
                trial.state = State(trial.done, server, aggregation=aggregation, repeats=repeats)
        if self._directory is None:
            trial.state = trial.state._replace(memory=empty_memory(blank))
        elif jax.tree.leaves(blank):
            self._directory.mkdir(parents=True, exist_ok=True)
            trial.state = trial.state._replace(memory=DiskMemory(blank, self._file(trial, "memory"), index))

    def save(self, trial: Trial) -> None:
        """Write a trial down; its clients' memory, where it has one, is committed first."""
        if self._directory is None or trial.state is None:
            return
        memory = trial.state.memory
        index = memory.commit() if isinstance(memory, DiskMemory) else {}
        facts = trial.facts() | {"clients": list(index), "slots": list(index.values()), "repeats": trial.state.repeats}
        leaves = jax.device_get(jax.tree.leaves((trial.state.server, trial.state.aggregation)))
        held = io.BytesIO()
        np.savez(held, facts=np.asarray(json.dumps(facts)), **{f"a{i}": leaf for i, leaf in enumerate(leaves)})
        with whole_file(self._file(trial)) as temporary:
            temporary.write_bytes(held.getvalue())

    def _holds(self, trial: Trial) -> bool:
        return self._directory is not None and self._file(trial).is_file()

    def _file(self, trial: Trial, kind: str = "npz") -> Path:
        assert self._directory is not None
        return self._directory / f"{trial.name[:20]}.{kind}"


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays of a file by name, each read when it is looked up."""
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as found:
        yield found


def _facts(found: Mapping[str, np.ndarray], trial: Trial) -> tuple[dict[str, Any], dict[int, int], int]:
    """What was saved of a trial, its clients' index and `State.repeats`; `ValueError` if it is not this trial's."""
    facts = json.loads(str(found["facts"]))
    index = dict(zip(facts.pop("clients"), facts.pop("slots"), strict=True))
    repeats = facts.pop("repeats")
    kinds = [{name: type(value) for name, value in each.items()} for each in (facts, trial.facts())]
    if facts["name"] != trial.name or kinds[0] != kinds[1]:
        raise ValueError("it holds another trial")
    return facts, index, repeats


def _read(file: Path, trial: Trial, server: Any) -> tuple[dict[str, Any], dict[int, int], int, Any]:
    """What `_facts` reads, and the trial's server state; `ValueError` if it is not this trial's."""
    leaves, structure = jax.tree.flatten(server)
    with _opened(file) as found:
        facts, index, repeats = _facts(found, trial)
        arrays = [found[f"a{i}"] for i in range(len(leaves))]
    shapes = [[(a.shape, a.dtype) for a in each] for each in (arrays, leaves)]
    if shapes[0] != shapes[1]:
        raise ValueError("it holds another trial")
    return facts, index, repeats, jax.tree.unflatten(structure, [jax.numpy.asarray(a) for a in arrays])
