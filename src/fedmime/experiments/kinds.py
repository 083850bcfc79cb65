"""Values from a file, fitted to the kind of the field they are for."""

from __future__ import annotations

import math
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from fedmime.named import FORMS, is_named

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}


def fitted(kind: Any, value: Any) -> Any:
    """The value as a field of this kind holds it; `ValueError` says what is accepted.

    Where a field takes names of this library or any text, the text is the name of the user's own code.
    """
    choices = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    names = [one for one in choices if get_origin(one) is Literal]
    if names and str in choices and isinstance(value, str) and value not in get_args(names[0]) and not is_named(value):
        raise ValueError(f"{_words(names[0])} or {FORMS}")
    for one in choices:
        found = _fitted(one, value)
        if found is not _NO:
            return found
    raise ValueError(" or ".join(_words(one) for one in choices))


_NO = object()


def _fitted(kind: Any, value: Any) -> Any:
    if get_origin(kind) is Literal:
        return value if isinstance(value, str) and value in get_args(kind) else _NO
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return tuple(value) if isinstance(value, list) and all(_fitted(inner, v) is not _NO for v in value) else _NO
    if kind is float:
        return _number(value)
    if kind is Path:
        return Path(value) if isinstance(value, str | Path) else _NO
    return value if isinstance(value, kind) and (kind is bool) == isinstance(value, bool) else _NO


def _number(value: Any) -> Any:
    """A number; YAML takes 1e-3 for text, people do not."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    try:
        return float(value) if isinstance(value, str) and math.isfinite(float(value)) else _NO
    except ValueError:
        return _NO


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is tuple:
        return "a list"
    return "nothing" if kind is types.NoneType else _WORDS[kind]
