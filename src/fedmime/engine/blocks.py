"""Host memory for examples that one round after another uses.

What is given back to the system has to be asked for again page by page, which takes longer than copying the examples.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes: a CPU device takes memory so aligned as it is
SMALL = 1 << 20  # bytes that are not worth it
LARGEST = 256 << 20  # bytes that are kept while nobody uses them
_spare: dict[int, np.ndarray] = {}  # by identity, the latest last: a block may come back at any time


def unfilled(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An aligned array in such memory."""
    return aligned(lent(math.prod(shape) * dtype.itemsize + ALIGNMENT), shape, dtype)


def aligned(raw: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An aligned array in some bytes, of which there are `ALIGNMENT` more than it needs."""
    size, start = raw.nbytes - ALIGNMENT, -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def lent(size: int) -> np.ndarray:
    """So many bytes that hold anything. They come back by themselves when no array refers to them any more."""
    if size < SMALL:
        return np.empty(size, np.uint8)
    fitting = next((name for name, block in list(_spare.items()) if block.nbytes == size), None)
    block = None if fitting is None else _spare.pop(fitting, None)
    if block is None:
        block = np.empty(size, np.uint8)
    # What arrays refer to: all views of an array have one base.
    lease: Any = (ctypes.c_uint8 * size).from_buffer(block)  # pyright: ignore[reportArgumentType]
    weakref.finalize(lease, _take_back, block).atexit = False
    return np.frombuffer(lease, np.uint8)


def _take_back(block: np.ndarray) -> None:
    _spare[id(block)] = block
    while sum(each.nbytes for each in list(_spare.values())) > LARGEST:
        _spare.pop(next(iter(_spare)), None)
