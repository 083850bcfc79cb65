"""Memory for what a round keeps of its full gradients, which the next round takes over.

A system hands new memory out page by page and clears each: for the tables of a large model that cost as much as a
twentieth of a round, and more on a machine that gives free memory back to its host.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.sharding import Mesh

from fedmime import native
from fedmime.engine.devices import SPREAD
from fedmime.vector import nbytes

LARGEST = 1 << 30  # bytes that are held between rounds

_held: dict[Any, Any] = {}  # by their kind, oldest first


def take(shapes: Any, on: Mesh) -> Any:
    """Tables with an axis of devices before these shapes; they hold anything, and become the taker's."""
    kind = _kind(shapes, on)
    tables = _held.pop(kind, None)
    return _maker(*kind)() if tables is None else tables


def keep(shapes: Any, on: Mesh, tables: Any) -> None:
    """Hold tables that were taken, or what became of them, for the next round; the oldest go if there are too many."""
    _held.pop(_kind(shapes, on), None)
    _held[_kind(shapes, on)] = tables
    while nbytes(list(_held.values())) > LARGEST:
        _held.pop(next(iter(_held)))


def release() -> None:
    """Give the memory back."""
    _held.clear()


def _kind(shapes: Any, on: Mesh) -> tuple[Any, tuple[Any, ...], Mesh]:
    leaves, tree = jax.tree.flatten(shapes)
    return tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves), on


@functools.lru_cache(maxsize=64)
def _maker(tree: Any, leaves: tuple[Any, ...], on: Mesh) -> Any:
    """What makes new tables, compiled once for each kind."""

    def make() -> Any:
        return jax.tree.unflatten(
            tree, [native.unfilled((1, *shape), dtype, i) for i, (shape, dtype) in enumerate(leaves)]
        )

    return jax.jit(jax.shard_map(make, mesh=on, in_specs=(), out_specs=SPREAD, check_vma=False))
