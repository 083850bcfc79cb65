"""Memory for what a round keeps of its full gradients, which the next round takes over.

A system hands new memory out page by page and clears each: for the tables of a large model that cost as much as a
twentieth of a round, and more on a machine that gives free memory back to its host.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh

from fedmime import native
from fedmime.engine.devices import SPREAD, spread

LARGEST = 1 << 30  # bytes to hold between rounds

_held: dict[Any, Any] = {}  # of the round before, if nobody has taken it


def take(shapes: Any, on: Mesh) -> Any:
    """Tables with an axis of devices before these shapes; they hold anything, and become the taker's."""
    tables = _held.pop(_name(shapes, on), None)
    release()
    return _new(shapes, on) if tables is None else tables


def keep(shapes: Any, on: Mesh, tables: Any) -> None:
    """Hold tables that were taken, or what became of them, for the next round."""
    release()
    _held[_name(shapes, on)] = tables


def release() -> None:
    """Give the memory back."""
    _held.clear()


def _name(shapes: Any, on: Mesh) -> Any:
    leaves, tree = jax.tree.flatten(shapes)
    return tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves), on


def _new(shapes: Any, on: Mesh) -> Any:
    def make() -> Any:
        leaves, tree = jax.tree.flatten(shapes)
        return jax.tree.unflatten(
            tree, [native.unfilled((1, *leaf.shape), leaf.dtype, i) for i, leaf in enumerate(leaves)]
        )

    own = jax.shard_map(make, mesh=on, in_specs=(), out_specs=SPREAD, check_vma=False)
    return jax.jit(own, out_shardings=spread(on))()
