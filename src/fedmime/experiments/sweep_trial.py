"""A point of a sweep: what it has reached so far, and its place on disk."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedmime.algorithms.algorithm import State
from fedmime.engine.memory import DiskMemory
from fedmime.experiments.grid import Values
from fedmime.files import whole_file

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
        """The mean of the last accuracies measured by a round; below every other score if the point had diverged."""
        seen = [value for t, value in zip(self.rounds, self.accuracy, strict=True) if t <= until]
        return -1.0 if self.lost(until) or not seen else float(np.mean(seen[-SMOOTHED:]))

    def lost(self, until: int) -> bool:
        """Whether it had diverged by a round; another sweep may have taken it further."""
        return self.diverged and self.done <= until

    def facts(self) -> dict[str, Any]:
        """What JSON can hold of it."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "state"}


class Shelf:
    """Trials in a directory, each in one file that is replaced whole. Without a directory nothing is kept."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def load(self, trial: Trial, start: State, blank: Any) -> None:
        """Bring a trial to where it was saved, or to the start."""
        file = None if self._directory is None else self._file(trial)
        index: dict[int, int] = {}
        trial.state = start
        if file is not None and file.is_file():
            with np.load(file, allow_pickle=False) as found:
                facts = json.loads(str(found["facts"]))
                arrays = [found[f"a{i}"] for i in range(len(jax.tree.leaves(start.server)))]
            index = dict(zip(facts.pop("clients"), facts.pop("slots"), strict=True))
            for name, value in facts.items():
                setattr(trial, name, value)
            server = jax.tree.unflatten(jax.tree.structure(start.server), [jax.numpy.asarray(a) for a in arrays])
            trial.state = State(trial.done, server)
        if jax.tree.leaves(blank) and self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
            trial.state = trial.state._replace(memory=DiskMemory(blank, self._file(trial, "memory"), index))

    def save(self, trial: Trial) -> None:
        """Write a trial down; its clients' memory, where it has one, is committed first."""
        if self._directory is None or trial.state is None:
            return
        memory = trial.state.memory
        index = memory.commit() if isinstance(memory, DiskMemory) else {}
        facts = trial.facts() | {"clients": list(index), "slots": list(index.values())}
        leaves = jax.device_get(jax.tree.leaves(trial.state.server))
        held = io.BytesIO()
        np.savez(held, facts=np.asarray(json.dumps(facts)), **{f"a{i}": leaf for i, leaf in enumerate(leaves)})
        with whole_file(self._file(trial)) as temporary:
            temporary.write_bytes(held.getvalue())

    def _file(self, trial: Trial, kind: str = "npz") -> Path:
        assert self._directory is not None
        return self._directory / f"{trial.name[:20]}.{kind}"
