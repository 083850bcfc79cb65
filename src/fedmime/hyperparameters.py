"""Hyper-parameters: numbers, or schedules that return a number for each round, with the range they must lie in.

Optimizers and algorithms are dataclasses (`recipe`) whose numbers are pytree leaves, so that a compiled round takes
them as arguments: neither a schedule nor a sweep over learning rates recompiles anything.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax

from fedmime.validation import Range, real

__all__ = ["Number", "Schedule", "Value", "at_round", "checked", "number", "recipe", "static"]

Schedule = Callable[[int], float]
"""The number of each round, counted from 0."""
Number = float | Schedule
"""What factories take for a hyper-parameter."""
Value = Any
"""The type of a recipe's field: the number of this round, or the schedule it comes from."""
T = TypeVar("T")


def number(accepted: Range) -> Any:
    """A field of a recipe that holds a number of the given range, or a schedule of such numbers."""
    return dataclasses.field(metadata={"range": accepted})


def static(**kwargs: Any) -> Any:
    """A field of a recipe that selects the program, such as a mode or a flag; another value compiles anew."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(number, static))
def recipe(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree: numbers and nested recipes are leaves, `static` fields are not.

    JAX's `register_dataclass` is not used. In JAX 0.10 the structures of two classes that it has registered are equal
    if their static fields are, and compiled functions are looked up by structures: now and then a median would run
    the program of a mean.
    """
    made = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(made)  # pyright: ignore[reportArgumentType] - it is one now
    inside = tuple(f.name for f in fields if not f.metadata.get("static"))
    beside = tuple(f.name for f in fields if f.metadata.get("static"))
    keys = [jax.tree_util.GetAttrKey(name) for name in inside]

    def flatten(instance: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(instance, name) for name in inside], tuple(getattr(instance, name) for name in beside)

    def flatten_with_keys(instance: Any) -> tuple[list[Any], tuple[Any, ...]]:
        children, outside = flatten(instance)
        return list(zip(keys, children, strict=True)), outside

    def unflatten(outside: tuple[Any, ...], children: Any) -> Any:
        return made(**dict(zip(inside, children, strict=True)), **dict(zip(beside, outside, strict=True)))

    jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten, flatten)
    return made


_scheduled = functools.partial(real, kind="a number or a schedule (round -> number)")


def checked(instance: T, owner: str | None = None) -> T:
    """A recipe with its numbers checked, as its factory returns it before anything is traced.

    Schedules are checked when their round comes (`at_round`).

    Args:
        instance: the recipe; nested recipes are checked, too.
        owner: the factory's name for messages, where it is not that of the recipe.
    """

    def check(owner: str, name: str, value: Any, accepted: Range) -> Any:
        return value if callable(value) else _scheduled(owner, name, value, accepted)

    return _resolve(instance, check, owner)


def at_round(instance: T, round_number: int) -> T:
    """The recipe of one round: schedules are replaced by that round's numbers, which are held to the same ranges."""

    def evaluate(owner: str, name: str, value: Any, accepted: Range) -> float:
        if not callable(value):
            return value
        return _scheduled(owner, f"{name}({round_number})", value(round_number), accepted)

    return _resolve(instance, evaluate)


def _resolve(instance: Any, change: Callable[[str, str, Any, Range], Any], owner: str | None = None) -> Any:
    """A recipe with a function applied to its numbers, in nested recipes as well.

    Args:
        change: a function of (owner, field name, value, range) that returns the new value.
    """
    owner = owner or type(instance).__name__.lower()
    changes = {}
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if "range" in field.metadata:
            changes[field.name] = change(owner, field.name, value, field.metadata["range"])
        elif dataclasses.is_dataclass(value) and not field.metadata.get("static"):
            changes[field.name] = _resolve(value, change)
    return dataclasses.replace(instance, **changes)
