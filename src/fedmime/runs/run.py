"""The result of a run: its history and its model, just computed or loaded from a run directory."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedmime.algorithms.algorithm import State, params
from fedmime.errors import CheckpointError, DataError
from fedmime.runs import glance, history, identity
from fedmime.runs.directory import IDENTITY, MODEL, read_identity


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """A finished run, as `simulate` returns it, or a run loaded from its directory."""

    history: dict[str, np.ndarray]
    """For every figure, an array with one entry per round; NaN in rounds that did not measure it."""
    state: State | None = None
    """The state after the last round; None for a run that was loaded from a directory."""
    path: Path | None = None
    """The run directory of a run that was loaded."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load the history of a run directory. The model is read when `params` is first used."""
        return cls(history.columns(history.read_rows(path)), None, Path(path))

    @property
    def params(self) -> Any:
        """The server model after the last round, as a plain pytree; `DataError` if a loaded run has none yet."""
        if self.state is not None:
            return params(self.state)
        if self.path is None or not (self.path / MODEL).is_file():
            raise DataError(f"{str(self.path)!r} holds no {MODEL}; the run has not ended yet")
        return read_model(self.path / MODEL)

    def __repr__(self) -> str:
        return glance.line(self.history, None if self.path is None else str(self.path))

    def _repr_html_(self) -> str:
        """The card that notebooks show: figures and curves."""
        return glance.card(self.history, None if self.path is None else str(self.path))

    def frame(self) -> Any:
        """The history as a pandas data frame, one row per round; `ImportError` if pandas is not installed."""
        try:
            import pandas  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ImportError("frame() needs pandas: pip install pandas; .history has the same as arrays") from None
        return pandas.DataFrame(self.history)


def read_model(path: Path) -> dict[str, Any]:
    """Read a model that was written as safetensors.

    A model in a run directory carries the digest of the configuration it was trained with. It is refused if the
    directory now belongs to a run of another configuration.

    Returns:
        A tree of dictionaries: the array `dense0.w` is at `["dense0"]["w"]`.

    Raises:
        DataError: the file is damaged. CheckpointError: the model belongs to another configuration.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
            written = (file.metadata() or {}).get("run", "").partition(" ")[0]
    except SafetensorError as error:
        raise DataError(f"{str(path)!r} is damaged: {error}") from None
    if written and (path.parent / IDENTITY).is_file() and written != identity.digest(read_identity(path.parent)):
        raise CheckpointError(f"{str(path)!r} belongs to a run of another configuration")
    return nested(flat, ".")


def nested(arrays: Mapping[str, Any], separator: str) -> dict[str, Any]:
    """Arrays by names like `a.b` as a tree of dictionaries; `separator` divides the parts of a name."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *places, leaf = name.split(separator)
        inner = tree
        for place in places:
            inner = inner.setdefault(place, {})
        inner[leaf] = array
    return tree
