"""Hyper-parameters: a number, or a schedule that gives one for each round, with the range it must lie in.

Optimizers and algorithms are dataclasses whose numbers are pytree leaves. So a compiled round takes them as arguments:
a schedule or a sweep over learning rates never recompiles.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import jax

from fedmime.errors import ConfigError

Schedule = Callable[[int], float]
Number = float | Schedule
Value = Any  # a field of a recipe: the number of this round, or the schedule it comes from
T = TypeVar("T")


class Range(NamedTuple):
    """The numbers an argument accepts, and how to say so."""

    accepts: Callable[[float], bool]
    words: str


POSITIVE = Range(lambda v: v > 0, "be positive")
NON_NEGATIVE = Range(lambda v: v >= 0, "not be negative")
UNIT = Range(lambda v: 0 <= v < 1, "lie in [0, 1)")
CLOSED_UNIT = Range(lambda v: 0 <= v <= 1, "lie in [0, 1]")


def number(accepted: Range) -> Any:
    """A dataclass field that holds a number (or schedule) of the given range."""
    return dataclasses.field(metadata={"range": accepted})


def static(**kwargs: Any) -> Any:
    """A dataclass field that is part of the program, not of its arguments: a mode, a flag."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(number, static))
def recipe(cls: type[T]) -> type[T]:
    """Make a frozen dataclass that is a pytree: numbers and nested recipes are leaves, `static` fields are not."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def _check(owner: str, name: str, value: Any, accepted: Range) -> float:
    if isinstance(value, bool) or (not isinstance(value, int | float) and getattr(value, "shape", None) != ()):
        raise ConfigError(f"{owner}: {name} must be a number or a schedule (round -> number), got {value!r}")
    value = float(value)
    if not math.isfinite(value) or not accepted.accepts(value):
        finite = "" if math.isfinite(value) else " and be finite"
        raise ConfigError(f"{owner}: {name} must {accepted.words}{finite}, got {value!r}")
    return value


def checked(instance: T) -> T:
    """Check a recipe's numbers, as its factory does before anything is traced; schedules wait for their round."""
    return _resolve(
        instance, lambda owner, name, value, ok: value if callable(value) else _check(owner, name, value, ok)
    )


def at_round(instance: T, round_number: int) -> T:
    """The recipe of one round: schedules become that round's numbers, and are held to the same ranges."""

    def evaluate(owner: str, name: str, value: Any, accepted: Range) -> float:
        if not callable(value):
            return value
        return _check(owner, f"{name}({round_number})", value(round_number), accepted)

    return _resolve(instance, evaluate)


def _resolve(instance: Any, function: Callable[[str, str, Any, Range], Any]) -> Any:
    changes = {}
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if "range" in field.metadata:
            changes[field.name] = function(type(instance).__name__.lower(), field.name, value, field.metadata["range"])
        elif dataclasses.is_dataclass(value) and not field.metadata.get("static"):
            changes[field.name] = _resolve(value, function)
    return dataclasses.replace(instance, **changes)


def choice(owner: str, name: str, value: str, accepted: tuple[str, ...]) -> str:
    """Check a mode's name."""
    if value not in accepted:
        raise ConfigError(f"{owner}: {name} must be one of {', '.join(map(repr, accepted))}, got {value!r}")
    return value


def count(owner: str, name: str, value: Any, least: int = 0) -> int:
    """Check a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{owner}: {name} must be a whole number of at least {least}, got {value!r}")
    return value
