"""Host memory for examples that one round after another uses.

What is given back to the system has to be asked for again page by page, which takes longer than copying the examples.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

SMALL = 1 << 20  # bytes that are not worth it
LARGEST = 256 << 20  # bytes that are kept while nobody uses them
_spare: list[np.ndarray] = []  # the latest last


def lent(size: int) -> np.ndarray:
    """So many bytes that hold anything. They come back by themselves when no array refers to them any more."""
    if size < SMALL:
        return np.empty(size, np.uint8)
    place = next((i for i, block in enumerate(_spare) if block.nbytes == size), None)
    block = np.empty(size, np.uint8) if place is None else _spare.pop(place)
    # What arrays refer to: all views of an array have one base.
    lease: Any = (ctypes.c_uint8 * size).from_buffer(block)  # pyright: ignore[reportArgumentType]
    weakref.finalize(lease, _take_back, block).atexit = False
    return np.frombuffer(lease, np.uint8)


def _take_back(block: np.ndarray) -> None:
    _spare.append(block)
    while sum(each.nbytes for each in _spare) > LARGEST:
        _spare.pop(0)
