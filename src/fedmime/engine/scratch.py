"""Memory for what a round keeps of its full gradients, which the next round takes over.

A system hands new memory out page by page and clears each; a machine that gives free memory back to its host also has
to ask for it again.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from fedmime import native
from fedmime.engine.devices import SPREAD
from fedmime.engine.gradients import unfilled
from fedmime.engine.kinds import hashable
from fedmime.vector import nbytes

LARGEST = 512 << 20  # bytes that are held between rounds


class Kind:
    """Tables with an axis of devices before some shapes. There is one for all that are alike."""

    def __init__(self, shapes: Any, on: Mesh) -> None:
        self.nbytes = nbytes(shapes) * on.size
        self._own = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), shapes)
        self._on = on

    def new(self) -> Any:
        """Tables that hold anything."""
        return self._make()

    @functools.cached_property
    def _make(self) -> Callable[[], Any]:
        own, specs = self._own, {"in_specs": (), "out_specs": SPREAD, "check_vma": False}
        return jax.jit(jax.shard_map(lambda: unfilled(own), mesh=self._on, **specs))


_held: dict[Kind, Any] = {}  # oldest first
_lock = threading.Lock()


def usable() -> bool:
    """Whether handing memory on pays; a search for NaN would look at what no round has written yet."""
    return native.usable() and not jax.config.jax_debug_nans  # pyright: ignore[reportAttributeAccessIssue]


def kind_of(shapes: Any, on: Mesh) -> Kind:
    """The kind of tables of these shapes on every device."""
    return _kind(*hashable(shapes), on)


def take(kind: Kind) -> Any:
    """Tables of a kind; they hold anything, and become the taker's."""
    with _lock:
        tables = _held.pop(kind, None)
        if tables is None:
            _make_room(kind.nbytes)
    return kind.new() if tables is None else tables


def keep(kind: Kind, tables: Any) -> None:
    """Hold tables that were taken, or what became of them, for the next round; the oldest go if there are too many."""
    with _lock:
        _held.pop(kind, None)
        _make_room(kind.nbytes)
        _held[kind] = tables


def release() -> None:
    """Give the memory back."""
    with _lock:
        _held.clear()


def _make_room(size: int) -> None:
    while _held and sum(kind.nbytes for kind in _held) + size > LARGEST:
        del _held[next(iter(_held))]


@functools.lru_cache(maxsize=64)
def _kind(tree: Any, leaves: tuple[Any, ...], on: Mesh) -> Kind:
    return Kind(jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in leaves]), on)
