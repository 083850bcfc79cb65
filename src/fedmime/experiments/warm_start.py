"""Warm starts: a run that begins with the model of an earlier one."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedmime.errors import CheckpointError, ConfigError
from fedmime.models import Problem
from fedmime.runs.directory import INITIAL, MODEL
from fedmime.runs.run import read_model
from fedmime.validation import floating, started
from fedmime.vector import by_place


@dataclasses.dataclass(frozen=True)
class Start:
    """The model that a run starts from."""

    source: str  # where it was taken from, as the run's configuration records it
    model: Any  # with the names and shapes of its file

    def fitted(self, problem: Problem) -> Any:
        """The model in the form that a problem's `init` returns; `ConfigError` if the shapes differ."""
        told = f"the model of {self.source!r}"
        started("init", told, floating("init", told, self.model), problem.init)
        own, found = jax.eval_shape(problem.init, jax.eval_shape(jax.random.key, 0)), by_place(self.model)
        leaves = [np.asarray(found[place], leaf.dtype) for place, leaf in by_place(own).items()]
        return jax.tree.unflatten(jax.tree.structure(own), leaves)


def opened(source: str | os.PathLike[str] | None) -> Start | None:
    """The last model of a run directory, or a model by its file; None where nothing is named."""
    if source is None:
        return None
    path = Path(os.path.abspath(source))
    if not path.exists():
        raise ConfigError(f"init: there is no {str(path)!r}; accepted is the directory of a run, or a model in it")
    file = path / MODEL if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"init: {str(path)!r} holds no {MODEL}: it is no run, or one that has not ended yet")
    return Start(str(path), read_model(file))


def kept(run: Path, source: str | None) -> Start | None:
    """What a run that goes on has started from: its own copy, or the source where it has none yet."""
    if source is None or not (run / INITIAL).is_file():
        if source is not None and not Path(source).exists():
            raise CheckpointError(f"init: {str(run)!r} starts from {source!r}, which is gone, and holds no {INITIAL}")
        return opened(source)
    return Start(source, read_model(run / INITIAL))
