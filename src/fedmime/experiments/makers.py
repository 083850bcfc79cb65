"""What makes an algorithm or a base optimizer: a function of this library, or of the user's own by its name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Mapping
from typing import Any

from fedmime import algorithms, named, optimizers
from fedmime.algorithms import Algorithm
from fedmime.errors import ConfigError
from fedmime.experiments.setting import ALGORITHMS, BASES
from fedmime.optimizers import BaseOptimizer
from fedmime.validation import quote

_KINDS = {"algorithm": (algorithms, ALGORITHMS, Algorithm), "base": (optimizers, BASES, BaseOptimizer)}


def check(field: str, name: str) -> None:
    """Refuse a name that is neither one of this library nor written as one of the user's own code."""
    known = _KINDS["algorithm" if field == "algorithm" else "base"][1]
    if name in known or named.is_named(name):
        return
    close = difflib.get_close_matches(str(name), known, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    accepted = f"one of {', '.join(map(repr, known))}, or {named.FORMS}"
    raise ConfigError(f"setting: {field} must be {accepted}, got {quote(name)}{hint}")


def found(kind: str, name: str) -> Any:
    """The function of a name, or the algorithm or optimizer itself where the user's code has it ready."""
    home, known, made_of = _KINDS[kind]
    if not named.is_named(name):
        check(kind, name)
        return getattr(home, name)
    value = named.load(kind, name, known)
    if not callable(value) and not isinstance(value, made_of):
        raise ConfigError(f"{kind}: {name!r} must be {_wanted(kind)}, got {quote(value)} ({type(value).__name__})")
    return value


def parameters(make: Any) -> Mapping[str, inspect.Parameter]:
    """What a function takes; nothing if there is an algorithm or an optimizer in its place."""
    return {} if isinstance(make, Algorithm | BaseOptimizer) else inspect.signature(make).parameters


def is_required(takes: Mapping[str, inspect.Parameter], name: str) -> bool:
    """Whether a function that takes these must be given one of this name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return name in takes and takes[name].default is inspect.Parameter.empty and takes[name].kind in kinds


def made(kind: str, name: str, make: Any, arguments: Mapping[str, Any], offered: Collection[str] = ()) -> Any:
    """What a function makes of arguments; of the user's own, the result is checked, and errors are told in one line.

    Args:
        offered: names of arguments that a setting has, for the message.
    """
    made_of = _KINDS[kind][2]
    if isinstance(make, made_of):
        return make
    if not named.is_named(name):
        return make(**arguments)
    takes = parameters(make)
    if missing := [each for each in takes if is_required(takes, each) and each not in arguments]:
        known = f"; a setting gives {', '.join(offered)}" if offered else ""
        raise ConfigError(f"{kind}: {name!r} takes {missing[0]!r}, which no option gives a value{known}")
    with named.blaming(kind, name):
        value = make(**arguments)
    if not isinstance(value, made_of):
        raise ConfigError(f"{kind}: {name!r} must be {_wanted(kind)}, but it made {quote(value)}")
    return value


def _wanted(kind: str) -> str:
    made_of = _KINDS[kind][2]
    return f"an {made_of.__name__} of fm.{'algorithms' if kind == 'algorithm' else 'optimizers'}, or a function for one"
