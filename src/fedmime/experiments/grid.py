"""Grids: values for the numbers of a setting, every combination of them a point."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from fedmime.errors import ConfigError
from fedmime.experiments.setting import Optimizer, Setting, merged
from fedmime.validation import NON_NEGATIVE, real

Values = dict[str, float]  # by the field of Setting, nested ones with a dot
Grid = Mapping[str, Sequence[float]]

_NUMBERS = tuple(f"{part}.{field.name}" for part in ("optimizer", "client") for field in dataclasses.fields(Optimizer))
AXES = ("eta", "eta_server", "mu", "alpha", "cap", *_NUMBERS, "aggregation.clip", "aggregation.noise")


def _decades(high: float, low: float, step: float) -> tuple[float, ...]:
    """Powers of ten, falling by `step` of an exponent."""
    return tuple(10.0 ** (high - step * k) for k in range(round((high - low) / step) + 1))


LIGHT: Grid = {"eta": _decades(0, -4, 0.5)}
HEAVY: Grid = {**LIGHT, "eta_server": _decades(1, -3, 0.5), "optimizer.eps": _decades(0, -6, 1)}


def checked(grid: Grid) -> dict[str, tuple[float, ...]]:
    """The grid with every axis known, every value a number, none twice."""
    if not grid:
        raise ConfigError(f"sweep: the grid has no axis; accepted are {', '.join(AXES)}")
    found = {}
    for name, values in grid.items():
        if name not in AXES:
            raise ConfigError(f"sweep: {name!r} is no number that a sweep varies; accepted are {', '.join(AXES)}")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(f"sweep: {name} must be a list of at least one number, got {values!r}")
        found[name] = tuple(real("sweep", name, value, NON_NEGATIVE) for value in values)
        if len(set(found[name])) < len(values):
            raise ConfigError(f"sweep: {name} names a value twice: {', '.join(f'{v:g}' for v in found[name])}")
    return found


def parse(words: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """A grid from words such as `eta=1,0.3,0.1`."""
    found: dict[str, tuple[float, ...]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        try:
            numbers = tuple(float(value) for value in values.split(","))
        except ValueError:
            numbers = ()
        if not equals or not numbers:
            raise ConfigError(f"sweep: an axis is written eta=1,0.3,0.1, got {word!r}")
        name = name.strip().replace("-", "_")
        if name in found:
            raise ConfigError(f"sweep: the axis {name!r} is given twice; put all of its values into one list")
        found[name] = numbers
    return checked(found)


def points(grid: Grid) -> list[Values]:
    """Every combination; the last axis runs fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def at(setting: Setting, values: Values) -> Setting:
    """The setting of a point."""
    return merged(setting, values, "the grid")


def edges(grid: Grid, values: Values) -> list[str]:
    """Axes at whose lowest or highest value a point lies, so that a better one may lie outside."""
    return [name for name, tried in grid.items() if len(tried) > 1 and values[name] in (min(tried), max(tried))]


def finer(best: float, step: float = 0.25) -> tuple[float, float]:
    """The values between a rate and its neighbours on a grid of half decades."""
    return best * 10.0**-step, best * 10.0**step


def beyond(rates: Sequence[float], best: float) -> float | None:
    """The rate half a decade outside of the tried ones, where the best of them is at an end; None if it is inside."""
    if best not in (min(rates), max(rates)):
        return None
    return best * 10.0 ** (0.5 if best == max(rates) else -0.5)


def words(values: Values) -> str:
    """A point as people write it."""
    return ", ".join(f"{name.rpartition('.')[2]} {value:.3g}" for name, value in values.items())
