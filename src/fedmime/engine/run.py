"""A run that was made: its history, its model."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedmime.algorithms.algorithm import State, params
from fedmime.engine import identity, record
from fedmime.engine.directory import IDENTITY, MODEL, read_identity
from fedmime.errors import CheckpointError, DataError


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, just made or loaded."""

    history: dict[str, np.ndarray]
    """One entry per round for every figure; NaN in rounds that did not measure it."""
    state: State | None = None
    """The state after the last round; None in a run that was loaded."""
    path: Path | None = None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The history of a run directory; its model is read when it is asked for."""
        return cls(record.columns(record.read_rows(path)), None, Path(path))

    @property
    def params(self) -> Any:
        """The server model after the last round, a plain pytree."""
        if self.state is not None:
            return params(self.state)
        if self.path is None or not (self.path / MODEL).is_file():
            raise DataError(f"{str(self.path)!r} holds no {MODEL}; the run has not ended yet")
        return read_model(self.path / MODEL)

    def frame(self) -> Any:
        """The history as a pandas data frame, where pandas is installed."""
        try:
            import pandas  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ImportError("frame() needs pandas: pip install pandas; .history has the same as arrays") from None
        return pandas.DataFrame(self.history)


def read_model(path: Path) -> dict[str, Any]:
    """A model written as safetensors: a tree of dictionaries, from names like `dense0.w`.

    One that a run of another configuration left in a run directory is refused.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import load

    try:
        flat = load(path.read_bytes())
        with safe_open(path, "numpy") as file:
            written = (file.metadata() or {}).get("run", "").partition(" ")[0]
    except SafetensorError as error:
        raise DataError(f"{str(path)!r} is damaged: {error}") from None
    if written and (path.parent / IDENTITY).is_file() and written != identity.digest(read_identity(path.parent)):
        raise CheckpointError(f"{str(path)!r} belongs to a run of another configuration")
    return nested(flat, ".")


def nested(arrays: Mapping[str, Any], separator: str) -> dict[str, Any]:
    """Arrays by names like `a.b` as a tree of dictionaries."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *places, leaf = name.split(separator)
        inner = tree
        for place in places:
            inner = inner.setdefault(place, {})
        inner[leaf] = array
    return tree
