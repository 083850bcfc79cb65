"""Examples that are not copied for every round: those of clients whose columns are stretches of arrays in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import jax
import numpy as np
from jax.sharding import Mesh

from fedmime import native
from fedmime.engine.blocks import ALIGNMENT, unfilled
from fedmime.engine.cohort import Columns, Member
from fedmime.engine.devices import everywhere

LARGEST = 256 << 20  # bytes that the devices may need a copy of


class Pool(NamedTuple):
    """Whole columns in memory, and the same on all devices."""

    host: Mapping[str, np.ndarray]
    device: Mapping[str, jax.Array]
    found: dict[int, int]  # where the examples of clients begin that were looked for before

    @classmethod
    def around(cls, clients: Sequence[Columns], on: Mesh, worth: float = LARGEST) -> Self | None:
        """The arrays that all of these clients are stretches of, if there are such arrays.

        A CPU takes aligned ones as they are; of others there may be a copy, if it is not larger than it is `worth`.
        """
        host = {name: whole for name, column in clients[0].items() if (whole := _whole(column)) is not None}
        pool = cls(host, {}, {})
        if any(client.keys() != host.keys() for client in clients) or pool.starts(clients) is None:
            return None
        copied = sum(column.nbytes for column in host.values() if not _taken_as_it_is(column))
        if copied > min(LARGEST, worth):
            return None
        placed = {name: jax.device_put(_placeable(column), everywhere(on)) for name, column in host.items()}
        return pool._replace(device=placed)

    def starts(self, clients: Sequence[Columns]) -> list[int] | None:
        """Where each client's examples begin, if all lie here."""
        addresses = {name: column.ctypes.data for name, column in self.host.items()}
        found = []
        for client in clients:
            native.give_way()
            starts = {_start(client[name], self.host[name], addresses[name]) for name in self.host}
            if len(starts) > 1 or None in starts:
                return None
            found += starts
        return found

    def starts_of(self, members: Sequence[Member]) -> Mapping[int, int] | None:
        """The same by client for members of a run's cohort: examples stay where they are as long as it goes on."""
        new = [m for m in members if m.index not in self.found]
        starts = self.starts([m.data for m in new])
        if starts is None:
            return None
        self.found.update(zip((m.index for m in new), starts, strict=True))
        return self.found


def _whole(column: np.ndarray) -> np.ndarray | None:
    """All memory of which a column is a stretch, as rows like its own."""
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "biufc":
        return None
    root = column
    while isinstance(root.base, np.ndarray):
        root = root.base
    plain = type(root) is np.ndarray and root.base is None and root.flags.c_contiguous  # no mapped file
    width = math.prod(column.shape[1:])
    if not plain or root.dtype != column.dtype or not width or jax.dtypes.canonicalize_dtype(root.dtype) != root.dtype:
        return None
    rows = root.size // width
    return root.reshape(-1)[: rows * width].reshape(rows, *column.shape[1:])


def _start(column: np.ndarray, whole: np.ndarray, address: int) -> int | None:
    if column.shape[1:] != whole.shape[1:] or column.dtype != whole.dtype or not column.flags.c_contiguous:
        return None
    start, rest = divmod(column.ctypes.data - address, whole.strides[0])
    return None if rest or not 0 <= start <= len(whole) - len(column) else start


def _taken_as_it_is(column: np.ndarray) -> bool:
    return jax.default_backend() == "cpu" and column.ctypes.data % ALIGNMENT == 0


def _placeable(column: np.ndarray) -> np.ndarray:
    """A column that all devices of a CPU take as it is; other devices have memory of their own."""
    if jax.default_backend() != "cpu" or _taken_as_it_is(column):
        return column
    copy = unfilled(column.shape, column.dtype)
    copy[:] = column
    return copy
