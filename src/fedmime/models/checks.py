"""Checks of host arrays before they are trained on.

Each function raises a one-line `DataError` that names the problem and the field, or returns the array. Shapes, types
and the ranges of integers are checked here; whether floats are finite is the engine's concern (`engine/intake.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedmime.errors import DataError

Fields = Mapping[str, np.ndarray]


def field(problem: str, fields: Fields, name: str) -> np.ndarray:
    """The array of a field, which must exist and hold at least one example."""
    if name not in fields:
        raise DataError(f"{problem}: field {name!r} is missing, got {sorted(fields)}")
    array = np.asarray(fields[name])
    if array.ndim == 0 or array.size == 0:
        raise DataError(f"{problem}: field {name!r} is empty, shape {array.shape}; at least one example is needed")
    return array


def features(problem: str, fields: Fields, shape: tuple[int, ...], name: str = "x") -> np.ndarray:
    """The array of a field of floats [examples, *shape].

    Bytes are refused with advice, because unscaled images train badly. Values that are not finite are accepted here: a
    round leaves such a client out.
    """
    array = field(problem, fields, name)
    if array.shape[1:] != shape:
        wanted = ", ".join(str(size) for size in ("examples", *shape))
        raise DataError(f"{problem}: field {name!r} must have shape [{wanted}], got {list(array.shape)}")
    if array.dtype == np.uint8:
        top = int(array.max())
        raise DataError(f"{problem}: field {name!r} must hold floats in [0, 1], got uint8 up to {top}; divide by 255")
    if not np.issubdtype(array.dtype, np.floating):
        raise DataError(f"{problem}: field {name!r} must hold floats, got {array.dtype}")
    return array


def integers(problem: str, fields: Fields, name: str, limit: int, axes: int, what: str) -> np.ndarray:
    """The array of a field of integers in [0, limit).

    Args:
        limit: number of classes, or size of the vocabulary.
        axes: number of axes: 1 for labels, 2 for sequences.
        what: what the integers are, for the message, such as `labels`.
    """
    array = field(problem, fields, name)
    if array.ndim != axes:
        wanted = "[examples]" if axes == 1 else "[examples, length]"
        raise DataError(f"{problem}: field {name!r} must have shape {wanted}, got {list(array.shape)}")
    if not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"{problem}: field {name!r} must hold integer {what}, got {array.dtype}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= limit:
        bad = low if low < 0 else high
        raise DataError(f"{problem}: field {name!r} must hold {what} in [0, {limit - 1}], got {bad}")
    return array


def same_length(problem: str, x: np.ndarray, y: np.ndarray) -> None:
    """Check that there are as many targets as inputs."""
    if len(x) != len(y):
        raise DataError(f"{problem}: field 'y' must have as many examples as 'x', got {len(y)} for {len(x)}")


def labelled(problem: str, fields: Fields, shape: tuple[int, ...], classes: int) -> None:
    """Check examples "x" [examples, *shape] with class labels "y" [examples]."""
    x = features(problem, fields, shape)
    same_length(problem, x, integers(problem, fields, "y", classes, 1, "labels"))


def tokens(problem: str, fields: Fields, vocabulary: int) -> None:
    """Check token sequences "x" and their targets "y", both [examples, length]."""
    x = integers(problem, fields, "x", vocabulary, 2, "tokens")
    y = integers(problem, fields, "y", vocabulary, 2, "tokens")
    if x.shape != y.shape:
        raise DataError(f"{problem}: field 'y' must have the shape {list(x.shape)} of 'x', got {list(y.shape)}")
