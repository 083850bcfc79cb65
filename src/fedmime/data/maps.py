"""The files of an open store, mapped into memory: arrays that read them when touched, and a watch over their sizes."""

from __future__ import annotations

import math
import mmap
from pathlib import Path

import numpy as np

from fedmime.errors import DataError


class Maps:
    """Arrays over files. A process that touches what was cut off a mapped file is killed, so `check` comes before."""

    def __init__(self) -> None:
        self._open: list[tuple[Path, mmap.mmap, int]] = []

    def array(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """A read-only plain array over a file of exactly this many values."""
        expected = math.prod(shape) * dtype.itemsize
        with path.open("rb") as file:
            if (found := file.seek(0, 2)) != expected:
                raise DataError(f"store file {str(path)!r} has {found} bytes; its schema says {expected}")
            if not expected:
                return np.empty(shape, dtype)
            mapped = mmap.mmap(file.fileno(), expected, access=mmap.ACCESS_READ)
        self._open.append((path, mapped, expected))
        return np.frombuffer(mapped, dtype).reshape(shape)

    def check(self) -> None:
        """Raise if a file has become shorter: one `fstat` a file."""
        for path, mapped, expected in self._open:
            if (found := mapped.size()) < expected:
                raise DataError(f"store file {str(path)!r} was cut to {found} bytes while in use; it had {expected}")
