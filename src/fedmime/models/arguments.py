"""Checks of the arguments of model factories, besides those of `fedmime.validation`.

Each function raises a one-line `ConfigError` that names the model and the argument, or returns the value in a normal
form: factories cache their problems by these values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedmime.errors import ConfigError
from fedmime.validation import count


def wholes(model: str, name: str, value: Any, least: int = 1) -> tuple[int, ...]:
    """A tuple of integers of at least `least`; a single integer stands for a tuple of one."""
    items = (value,) if isinstance(value, int | np.integer) else value
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise ConfigError(f"{model}: {name} must be a tuple of whole numbers, got {value!r}")
    return tuple(count(model, f"{name}[{i}]", item, least) for i, item in enumerate(items))


def shape(model: str, name: str, value: Any) -> tuple[int, ...]:
    """The shape of one example: at least one axis, each of positive length."""
    sizes = wholes(model, name, value)
    if not sizes:
        raise ConfigError(f"{model}: {name} must have at least one axis, got {value!r}")
    return sizes


def classes(model: str, value: Any) -> int:
    """A number of classes: at least two."""
    return count(model, "classes", value, least=2)


def probability(model: str, name: str, value: Any) -> float:
    """A dropout rate in [0, 1). A rate of one would leave nothing to train on."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not 0.0 <= value < 1.0:
        raise ConfigError(f"{model}: {name} must lie in [0, 1), got {value!r}")
    return float(value)
