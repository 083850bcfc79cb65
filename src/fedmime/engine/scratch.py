"""Memory for what a round keeps of its full gradients, which the next round takes over.

A system hands new memory out page by page and clears each; a machine that gives free memory back to its host also has
to ask for it again.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import jax
from jax.sharding import Mesh

from fedmime import native
from fedmime.engine.devices import SPREAD
from fedmime.engine.gradients import unfilled
from fedmime.engine.traced import hashable
from fedmime.vector import nbytes

LARGEST = 512 << 20  # bytes that are held between rounds

_held: dict[Any, Any] = {}  # by their kind, oldest first
_lock = threading.Lock()


def usable() -> bool:
    """Whether handing memory on pays; a search for NaN would look at what no round has written yet."""
    return native.usable() and not jax.config.jax_debug_nans  # pyright: ignore[reportAttributeAccessIssue]


def take(shapes: Any, on: Mesh) -> Any:
    """Tables with an axis of devices before these shapes; they hold anything, and become the taker's."""
    kind = _kind(shapes, on)
    with _lock:
        tables = _held.pop(kind, None)
        if tables is None:
            _make_room(nbytes(shapes) * on.size)
    return _maker(*kind)() if tables is None else tables


def keep(shapes: Any, on: Mesh, tables: Any) -> None:
    """Hold tables that were taken, or what became of them, for the next round; the oldest go if there are too many."""
    kind = _kind(shapes, on)
    with _lock:
        _held.pop(kind, None)
        _make_room(nbytes(tables))
        _held[kind] = tables


def release() -> None:
    """Give the memory back."""
    with _lock:
        _held.clear()


def _make_room(size: int) -> None:
    while _held and nbytes(list(_held.values())) + size > LARGEST:
        del _held[next(iter(_held))]


def _kind(shapes: Any, on: Mesh) -> tuple[Any, tuple[Any, ...], Mesh]:
    return *hashable(shapes), on


@functools.lru_cache(maxsize=64)
def _maker(tree: Any, leaves: tuple[Any, ...], on: Mesh) -> Any:
    """What makes new tables, compiled once for each kind."""
    own = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct((1, *shape), dtype) for shape, dtype in leaves])
    return jax.jit(jax.shard_map(lambda: unfilled(own), mesh=on, in_specs=(), out_specs=SPREAD, check_vma=False))
