"""One column of a table as an array, whatever its cells are: numbers, text, images or sequences.

Equal cells give equal arrays, from whichever reader they come. Whole numbers are int32, other numbers float32, truth
values bool, text bytes, images float32 in [0, 1] with a last axis of channels; `dtypes` and `Pad` say otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmime.data.padding import Pad
from fedmime.errors import DataError

TRUTH, WHOLE, REAL, TEXT, IMAGE, SEQUENCE = (
    "true or false",
    "whole numbers",
    "numbers",
    "text",
    "images",
    "sequences",
)
_MISSING = ("None", "<NA>", "NaT")  # the last two are those of pandas


class Style(NamedTuple):
    """What a column is made into, beside the rules of this module."""

    dtype: Any = None
    pad: Pad | None = None
    hint: str = "pad="
    """How the caller gives a padding rule, for messages."""


def array_of(cells: Any, place: Callable[[int], str], style: Style) -> np.ndarray:
    """The cells of a column as an array whose first axis is rows; text as an object array of bytes.

    Args:
        cells: an array of numbers, or a sequence of Python values.
        place: names a row, such as `column 'age', row 7`.

    Raises:
        DataError: a value is missing, not finite, or of another kind or shape than the first row's.
    """
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        if style.pad is not None:
            return _stacked(list(cells), place, style)
        _finite(cells, place)
        return typed(cells, place, style.dtype)
    values = [_plain(cell) for cell in cells]
    kind = _kind(values, place)
    if style.dtype is str or kind == TEXT:
        if style.dtype not in (None, str):
            raise DataError(f"{place(0)} holds {values[0]!r:.40}; accepted are numbers, as dtype {style.dtype} says")
        return _text(values, place)
    if kind == IMAGE:
        return _stacked([_pixels(value) for value in values], place, style)
    if kind == SEQUENCE:
        return _stacked([_sequence(value, place, row) for row, value in enumerate(values)], place, style)
    if style.pad is not None:
        raise DataError(f"{place(0)} holds {values[0]!r:.40}; only sequences of numbers can be padded")
    if kind == WHOLE and (large := [row for row, value in enumerate(values) if not -(2**63) <= value < 2**63]):
        raise DataError(f"{place(large[0])} holds {values[large[0]]}, which int64 cannot hold")
    array = np.array(values, {TRUTH: bool, WHOLE: np.int64, REAL: np.float64}[kind]) if values else np.zeros(0)
    _finite(array, place)
    return typed(array, place, style.dtype)


def typed(array: np.ndarray, place: Callable[[int], str], dtype: Any = None) -> np.ndarray:
    """Numbers in the dtype that was asked for, or in that of their kind; a number that it cannot hold is refused."""
    wanted = dtype_of(array.dtype, dtype)
    if wanted == array.dtype:
        return array
    if wanted.kind in "iu" and array.size:
        limits = np.iinfo(wanted)
        wrong = (array < limits.min) | (array > limits.max)
        if array.dtype.kind == "f":
            wrong |= array != np.trunc(array)
        if wrong.any():
            where = tuple(np.argwhere(wrong)[0].tolist())
            told = f"give dtypes={{field: '{'int64' if array.dtype.kind in 'iu' else 'float32'}'}}"
            raise DataError(f"{place(where[0])} holds {array[where]}, which {wanted.name} cannot hold; {told}")
    with np.errstate(over="ignore"):
        new = array.astype(wanted)
    if wanted.kind == "f":
        _finite(new, place)
    return new


def dtype_of(found: np.dtype, asked: Any = None) -> np.dtype:
    """The dtype of a column: the one asked for, or int32, float32, bool; bytes (uint8) stay bytes."""
    if asked is not None:
        return np.dtype(asked)
    if found == np.uint8 or found.kind == "b":
        return found
    return np.dtype(np.float32 if found.kind == "f" else np.int32)


def _plain(cell: Any) -> Any:
    """A cell of NumPy or PyTorch as plain Python where it is a single value, else as an array."""
    if hasattr(cell, "detach"):  # a tensor
        cell = cell.detach().cpu().numpy()
    if isinstance(cell, np.generic) or (isinstance(cell, np.ndarray) and cell.ndim == 0):
        return cell.item()
    return cell


def _kind(values: Sequence[Any], place: Callable[[int], str]) -> str:
    """The kind of all cells; whole numbers among others are numbers."""
    kinds = [_kind_of(value) for value in values]
    kind = kinds[0] if kinds else REAL
    for row, found in enumerate(kinds):
        value = values[row]
        if (found is None and repr(value) in _MISSING) or (found == REAL and math.isnan(value)):
            raise DataError(f"{place(row)} is missing ({value!r}); every row needs a value")
        if found is None:
            told = f"{value!r:.40} ({type(value).__name__})"
            raise DataError(f"{place(row)} holds {told}; accepted are numbers, text, images and sequences of numbers")
        if {kind, found} == {WHOLE, REAL}:
            kind = REAL
        elif found != kind:
            told = f"{value!r:.40} ({type(value).__name__})"
            raise DataError(f"{place(row)} holds {told}; the rows before hold {kind}, and a column holds one kind")
    assert kind is not None
    return kind


def _kind_of(value: Any) -> str | None:
    if isinstance(value, bool):
        return TRUTH
    for kinds, name in ((int, WHOLE), (float, REAL), (str | bytes, TEXT), (list | tuple | np.ndarray, SEQUENCE)):
        if isinstance(value, kinds):
            return name
    return IMAGE if hasattr(value, "getbands") else None  # as images of PIL have


def _finite(array: np.ndarray, place: Callable[[int], str]) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        where = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise DataError(f"{place(where[0])} holds {array[where]}; accepted are finite numbers")


def _text(values: Sequence[Any], place: Callable[[int], str]) -> np.ndarray:
    array = np.empty(len(values), object)
    for row, value in enumerate(values):
        if isinstance(value, list | tuple | np.ndarray) or not _kind_of(value):
            raise DataError(f"{place(row)} holds {value!r:.40}; accepted is text")
        array[row] = value if isinstance(value, bytes) else str(value).encode()
    return array


def _pixels(image: Any) -> np.ndarray:
    """An image of PIL as float32 [height, width, channels] in [0, 1]."""
    if image.mode in ("P", "CMYK", "YCbCr", "LAB", "HSV"):
        image = image.convert("RGB")
    pixels = np.asarray(image)
    if pixels.dtype.kind in "iu":
        pixels = pixels / (255 if image.mode in ("L", "LA", "RGB", "RGBA", "RGBX", "La", "RGBa") else 65535)
    pixels = pixels.astype(np.float32)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _sequence(value: Any, place: Callable[[int], str], row: int) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        raise DataError(f"{place(row)} holds {value!r:.40}, whose parts differ in length") from None
    if not array.size:
        return array.astype(np.int64)  # joins whatever the other rows hold
    if array.dtype.kind not in "biuf":
        raise DataError(f"{place(row)} holds {value!r:.40}; accepted are sequences of numbers, none of them missing")
    return array


def _stacked(rows: list[np.ndarray], place: Callable[[int], str], style: Style) -> np.ndarray:
    """Rows of one shape as one array; 1-D rows of several lengths by their padding rule."""
    for row, array in enumerate(rows):
        _finite(array, lambda _, row=row: place(row))
    found = np.result_type(*{row.dtype for row in rows if row.size} or {np.dtype(np.int64)})
    if style.pad is not None:
        rows = [typed(row.astype(found), lambda _, i=i: place(i), style.dtype) for i, row in enumerate(rows)]
        return style.pad(rows, dtype_of(found, style.dtype), place)
    for row, array in enumerate(rows):
        if array.shape != rows[0].shape:
            told = f"{place(row)} has shape {array.shape}, that of the first row is {rows[0].shape}"
            rule = f"; give {style.hint}" if array.ndim == rows[0].ndim == 1 else "; a column holds one shape"
            raise DataError(told + rule)
    return typed(np.stack(rows).astype(found, copy=False), place, style.dtype)
