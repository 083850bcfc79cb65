"""A built-in model on a store of one's own: `model@path`. Shapes and classes are those of the store's examples."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmime.errors import ConfigError
from fedmime.experiments.setting import store_of
from fedmime.experiments.task import Task

if TYPE_CHECKING:
    from fedmime.data import Population
    from fedmime.models import Problem

_RATES = {"cnn": 0.03, "char_lstm": 1.0, "word_lstm": 1.0}  # at which plain SGD learns
_COHORT = 20


def is_model_on_store(name: str) -> bool:
    """Whether a task's name is that of a built-in model with a store."""
    return store_of(name) is not None


@functools.lru_cache(maxsize=8)
def task(name: str) -> Task:
    """The task of a built-in model on a store; `ConfigError` if the store's fields do not suit the model.

    The store is read once for the largest label or token, and so is its test set.
    """
    from fedmime.data import from_store

    found = store_of(name)
    assert found is not None
    model, store = found
    population = from_store(store)
    sizes = _sizes(model, store, population)

    def problem() -> Problem:
        from fedmime import models

        return getattr(models, model)(**sizes)

    told = ", ".join(f"{key} {value}" for key, value in sizes.items() if key != "ignore")
    return Task(
        f"{model}@{Path(store).name}",
        problem,
        lambda: from_store(store),
        about=f"{model} with {told}, on {store}",
        cohort=max(1, min(_COHORT, int((population.sizes > 0).sum()))),
        eta=_RATES.get(model, 0.1),
    )


def _sizes(model: str, store: str, population: Population) -> dict[str, Any]:
    """What the factory of a model is called with for examples like these."""
    fields = population.fields
    if missing := [name for name in ("x", "y") if name not in fields]:
        told = ", ".join(f"{name} ({field})" for name, field in fields.items())
        raise ConfigError(f"data: {model} needs fields 'x' and 'y', {store!r} lacks {missing[0]!r}: it has {told}")
    x, y = fields["x"], fields["y"]
    sequences = model.endswith("lstm")
    if sequences:
        suits = not (x.ragged or y.ragged) and x.dtype.kind in "iu" and y.dtype.kind in "iu" and len(x.shape) == 1
        wanted = "sequences of tokens, x and y int[length]; pad ragged ones with 0"
        suits = suits and x.shape == y.shape
    else:
        suits = not (x.ragged or y.ragged) and x.dtype.kind == "f" and bool(x.shape) and not y.shape
        suits = suits and y.dtype.kind in "iu"
        wanted = "examples x float[...] with class labels y int"
    if not suits:
        raise ConfigError(f"data: {model} learns from {wanted}; {store!r} has x {x} and y {y}")
    parts = [population.pool(), *([] if population.test is None else [population.test])]
    largest = _largest(model, store, parts, ("x", "y") if sequences else ("y",))
    if sequences:  # word_lstm leaves out oov and eos where they are in published data, which are words here
        return {"vocabulary": largest + 1, "ignore": (0,)}
    return {"input_shape": x.shape, "classes": max(2, largest + 1)}


def _largest(model: str, store: str, parts: Sequence[Mapping[str, np.ndarray]], names: tuple[str, ...]) -> int:
    """The largest label or token of training and test examples; none is negative."""
    columns = [(name, part[name]) for part in parts for name in names if part[name].size]
    if not columns:
        raise ConfigError(f"data: {store!r} has no examples")
    for name, column in columns:
        if (low := int(column.min())) < 0:
            raise ConfigError(f"data: {model} counts from 0, {store!r} has {low} in field {name!r}")
    return max(int(column.max()) for _, column in columns)
