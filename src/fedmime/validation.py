"""Checks of what enters the library: the arguments of public functions, and the values of clients' columns.

Each check of an argument raises a one-line `ConfigError` or returns the value in a normal form. Their first arguments
are the name of the function that was called (`owner`) and of its argument (`name`), for the message. The checks of
columns return sentences; `fedmime data verify` and runs use the same ones, so that they find and word the same
findings alike.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.errors import ConfigError
from fedmime.vector import by_place

LARGEST_COUNT = 2**31 - 1  # rounds, clients, steps and the like are int32 on the devices
LARGEST_SEED = 2**63 - 1  # the largest integer that `jax.random.key` accepts


class Range(NamedTuple):
    """The numbers that an argument accepts.

    Attributes:
        accepts: whether a number lies in the range.
        words: the range in words that follow "must", for messages.
        infinite: whether `math.inf` is accepted as well, for bounds that may be absent.
    """

    accepts: Callable[[float], bool]
    words: str
    infinite: bool = False


POSITIVE = Range(lambda v: v > 0, "be positive")
"""Numbers above 0."""
BOUND = Range(lambda v: v > 0, "be positive, or math.inf", infinite=True)
"""Numbers above 0, and infinity where there is no bound."""
NON_NEGATIVE = Range(lambda v: v >= 0, "not be negative")
"""0 and above."""
UNIT = Range(lambda v: 0 <= v < 1, "lie in [0, 1)")
"""From 0 up to 1, which is left out."""
SHARE = Range(lambda v: 0 < v <= 1, "lie in (0, 1]")
"""Above 0, and up to 1."""
CLOSED_UNIT = Range(lambda v: 0 <= v <= 1, "lie in [0, 1]")
"""From 0 to 1, with both ends."""


def quote(value: Any, most: int = 200) -> str:
    """The representation of a value for a message: one line, shortened to `most` characters."""
    text = re.sub(r"\s*\n\s*", " ", repr(value))
    return text if len(text) <= most else text[:most] + "…"


def real(owner: str, name: str, value: Any, accepted: Range, kind: str = "a number") -> float:
    """Check a real number of Python, NumPy or JAX; it must be finite unless its range says otherwise.

    Args:
        accepted: the range it must lie in.
        kind: what is accepted, for the message.
    """
    if not _is_real(value):
        raise ConfigError(f"{owner}: {name} must be {kind}, got {quote(value)}")
    value = value if isinstance(value, int) else float(value)
    if accepted.infinite and value == math.inf:
        return math.inf
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


def not_finite(columns: Mapping[str, np.ndarray]) -> Iterator[str]:
    """For every field with NaN or infinite values, a sentence that names it and counts them."""
    for name, values in columns.items():
        bad = int((~np.isfinite(values)).sum()) if values.dtype.kind in "fc" else 0
        if bad:
            yield f"field {name!r} has {bad} NaN or infinite values of {values.size}; accepted are finite numbers"


def unscaled(name: str, values: np.ndarray) -> str | None:
    """A sentence about images that hold bytes, or floats that were bytes; None for other columns.

    Columns with three or more axes are taken for images. Values in [0, 255] with a maximum above 16 are taken for
    bytes: images scaled to [0, 1], or standardised, stay below.
    """
    if values.ndim < 3 or not values.size or values.dtype.kind not in "fu":
        return None
    if not 16 < values.max() <= 255 or values.min() < 0:
        return None
    return f"field {name!r} lies in [0, 255]; models expect [0, 1]: divide by 255"
