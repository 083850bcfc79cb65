"""Checks of the arguments of model factories.

Each function raises a one-line `ConfigError` that names the model and the argument, or returns the value in a normal
form: factories cache their problems by these values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedmime.errors import ConfigError


def whole(model: str, name: str, value: Any, least: int = 1) -> int:
    """An integer of at least `least`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < least:
        raise ConfigError(f"{model}: {name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def wholes(model: str, name: str, value: Any, least: int = 1) -> tuple[int, ...]:
    """A tuple of integers of at least `least`; a single integer stands for a tuple of one."""
    if isinstance(value, (int, np.integer)):
        value = (value,)
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ConfigError(f"{model}: {name} must be a tuple of whole numbers, got {value!r}")
    return tuple(whole(model, f"{name}[{i}]", item, least) for i, item in enumerate(value))


def shape(model: str, name: str, value: Any) -> tuple[int, ...]:
    """The shape of one example: at least one axis, each of positive length."""
    sizes = wholes(model, name, value)
    if not sizes:
        raise ConfigError(f"{model}: {name} must have at least one axis, got {value!r}")
    return sizes


def probability(model: str, name: str, value: Any) -> float:
    """A dropout rate in [0, 1). A rate of one would leave nothing to train on."""
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0.0 <= value < 1.0:
        raise ConfigError(f"{model}: {name} must lie in [0, 1), got {value!r}")
    return float(value)
