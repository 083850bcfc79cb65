"""Hyper-parameters and the checks of arguments.

A hyper-parameter is a number, or a schedule that returns a number for each round, with the range it must lie in.
Optimizers and algorithms are dataclasses (`recipe`) whose numbers are pytree leaves, so that a compiled round takes
them as arguments: neither a schedule nor a sweep over learning rates recompiles anything.

Each check raises a one-line `ConfigError` or returns the value in a normal form. Their first arguments are the name of
the function that was called (`owner`) and of its argument (`name`), for the message.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.errors import ConfigError

Schedule = Callable[[int], float]
Number = float | Schedule
Value = Any  # a field of a recipe: the number of this round, or the schedule it comes from
T = TypeVar("T")
LARGEST_COUNT = 2**31 - 1  # rounds, clients, steps and the like are int32 on the devices
LARGEST_SEED = 2**63 - 1  # the largest integer that `jax.random.key` accepts


class Range(NamedTuple):
    """The numbers that an argument accepts.

    Attributes:
        accepts: whether a number lies in the range.
        words: the range in words that follow "must", for messages.
    """

    accepts: Callable[[float], bool]
    words: str


POSITIVE = Range(lambda v: v > 0, "be positive")
NON_NEGATIVE = Range(lambda v: v >= 0, "not be negative")
UNIT = Range(lambda v: 0 <= v < 1, "lie in [0, 1)")
CLOSED_UNIT = Range(lambda v: 0 <= v <= 1, "lie in [0, 1]")


def number(accepted: Range) -> Any:
    """A field of a recipe that holds a number of the given range, or a schedule of such numbers."""
    return dataclasses.field(metadata={"range": accepted})


def static(**kwargs: Any) -> Any:
    """A field of a recipe that selects the program, such as a mode or a flag; another value compiles anew."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(number, static))
def recipe(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree: numbers and nested recipes are leaves, `static` fields are not."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def quote(value: Any, most: int = 200) -> str:
    """The representation of a value for a message: one line, shortened to `most` characters."""
    text = re.sub(r"\s*\n\s*", " ", repr(value))
    return text if len(text) <= most else text[:most] + "…"


def real(owner: str, name: str, value: Any, accepted: Range, kind: str = "a number") -> float:
    """Check a finite real number of Python, NumPy or JAX.

    Args:
        accepted: the range it must lie in.
        kind: what is accepted, for the message.
    """
    if not _is_real(value):
        raise ConfigError(f"{owner}: {name} must be {kind}, got {quote(value)}")
    value = value if isinstance(value, int) else float(value)
    finite = abs(value) <= sys.float_info.max  # neither NaN nor infinite nor an integer too large for a float
    if not finite or not accepted.accepts(value):
        raise ConfigError(
            f"{owner}: {name} must {accepted.words}{'' if finite else ' and be finite'}, got {quote(value)}"
        )
    return float(value)


def _is_real(value: Any) -> bool:
    """Whether a value is a real number or a scalar array of one; booleans are not."""
    if isinstance(value, int | float):
        return not isinstance(value, bool)
    kind = getattr(value, "dtype", None) if getattr(value, "shape", None) == () else None
    return kind is not None and any(jnp.issubdtype(kind, real_kind) for real_kind in (jnp.integer, jnp.floating))


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


def choice(owner: str, name: str, value: str, accepted: tuple[str, ...]) -> str:
    """Check that a value is one of the accepted names."""
    if not isinstance(value, str) or value not in accepted:
        raise ConfigError(f"{owner}: {name} must be one of {', '.join(map(repr, accepted))}, got {quote(value)}")
    return value


def flag(owner: str, name: str, value: Any) -> bool:
    """Check a truth value. Other types are refused: the text `"no"` would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{owner}: {name} must be True or False, got {quote(value)}")
    return bool(value)


def whole(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer of Python or NumPy; booleans are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def count(owner: str, name: str, value: Any, least: int = 0, most: int = LARGEST_COUNT) -> int:
    """Check an integer between `least` and `most`."""
    if not whole(value) or not least <= value <= most:
        limit = f" and at most {most}" if whole(value) and value > most else ""
        raise ConfigError(f"{owner}: {name} must be a whole number of at least {least}{limit}, got {quote(value)}")
    return int(value)


def function(owner: str, name: str, value: Any) -> Any:
    """Check that an argument can be called."""
    if not callable(value):
        raise ConfigError(f"{owner}: {name} must be a function, got {quote(value)}")
    return value


def made(owner: str, name: str, value: Any, kind: Any, words: str) -> Any:
    """Check that an argument is an instance of a class.

    Args:
        kind: the class, or anything else that `isinstance` accepts.
        words: where such objects come from, in words that follow "must", for the message.
    """
    if not isinstance(value, kind):
        raise ConfigError(f"{owner}: {name} must {words}, got {quote(value)} ({type(value).__name__})")
    return value


def offers(owner: str, name: str, value: Any, attributes: tuple[str, ...], words: str) -> Any:
    """Check that an argument, of whatever class, has the attributes by which it is used.

    Args:
        attributes: the names it must have.
        words: where such objects come from, in words that follow "must", for the message.
    """
    if missing := [attribute for attribute in attributes if not hasattr(value, attribute)]:
        raise ConfigError(f"{owner}: {name} must {words}, got {quote(value)}, which has no {', '.join(missing)}")
    return value


def random_key(owner: str, name: str, value: Any) -> jax.Array:
    """Check one random key of JAX: a typed key, or two numbers as `jax.random.PRNGKey` returns them."""
    kind, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    typed = kind is not None and jnp.issubdtype(kind, jax.dtypes.prng_key)
    if not (typed and shape == ()) and not (kind == np.uint32 and shape == (2,)):
        raise ConfigError(f"{owner}: {name} must be a random key such as jax.random.key(0), got {quote(value)}")
    return value


def floating(owner: str, name: str, tree: Any) -> Any:
    """Check that an argument is a model: a pytree of floating-point arrays, or of their shapes."""
    leaves = jax.tree.leaves(tree)
    if not leaves or not all(hasattr(a, "dtype") and jnp.issubdtype(a.dtype, jnp.floating) for a in leaves):
        raise ConfigError(f"{owner}: {name} must be a pytree of floating-point arrays, got {quote(tree)}")
    return tree


def started(owner: str, name: str, tree: Any, init: Callable[[jax.Array], Any] | None) -> Any:
    """Check that a model has the arrays that a problem's `init` returns.

    Args:
        tree: the model.
        init: the problem's function; None, or a function that cannot be traced, accepts every model.
    """
    own, given = _initial(init), _shapes(tree)
    if own and own != given:
        missing = {place: shape for place, shape in own.items() if given.get(place) != shape}
        foreign = {place: shape for place, shape in given.items() if own.get(place) != shape}
        raise ConfigError(
            f"{owner}: {name} must have the arrays of problem.init, {quote(missing)}, got {quote(foreign)}"
        )
    return tree


@functools.lru_cache(maxsize=64)
def _initial(init: Callable[[jax.Array], Any] | None) -> dict[str, tuple[int, ...]]:
    """The shapes that a problem's `init` returns, by place; none if it cannot be traced."""
    try:
        return {} if init is None else _shapes(jax.eval_shape(init, jax.random.key(0)))
    except Exception:  # a user's function may do things that cannot be traced
        return {}


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of a pytree's arrays, by place."""
    return {place: jnp.shape(leaf) for place, leaf in by_place(tree).items()}


def by_place(tree: Any) -> dict[str, Any]:
    """The arrays of a pytree by their places in it, such as `dense0.w`."""
    places, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in places}
