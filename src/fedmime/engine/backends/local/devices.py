"""The local devices that clients are spread over: one device for each core of a CPU by default."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedmime.errors import ConfigError
from fedmime.validation import quote, whole

AXIS = "device"
REPLICATED, SHARDED = PartitionSpec(), PartitionSpec(AXIS)


def mesh(devices: int | None = None) -> Mesh:
    """A mesh over the first `devices` local devices, or over all of them."""
    present = len(jax.local_devices())
    if devices is None:
        devices = present
    if not whole(devices) or not 1 <= devices <= present:
        raise ConfigError(
            f"devices must be a whole number between 1 and {present} on this machine, got {quote(devices)}"
        )
    return _mesh(int(devices))


@functools.cache
def _mesh(devices: int) -> Mesh:
    return Mesh(np.asarray(jax.local_devices()[:devices]), (AXIS,))


def lanes() -> int:
    """The number of clients that one device trains side by side: one on a CPU core, several on an accelerator."""
    return 1 if jax.default_backend() == "cpu" else 16


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Copy a pytree to every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, REPLICATED))


def shard(tree: Any, mesh: Mesh) -> Any:
    """Spread the leading axis of every array over the devices of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, SHARDED))


def add_parts(trees: Sequence[Any], mesh: Mesh) -> Any:
    """Add pytrees of arrays [devices, ...] over trees and devices, in their order, on the first device.

    Each device's part is copied there first. A collective would make devices wait for each other inside a program, and
    an error on one of them would then leave the others waiting.
    """
    leaves, structure = jax.tree.flatten(trees[0])
    columns = zip(leaves, *(jax.tree.leaves(tree) for tree in trees[1:]), strict=True)
    parts = [[shard.data for leaf in column for shard in _shards(leaf)] for column in columns]
    return jax.tree.unflatten(structure, _add(jax.device_put(parts, mesh.devices.flat[0])))


def _shards(array: jax.Array) -> list[jax.Shard]:
    """The parts of an array [devices, ...], in the order of the devices."""
    return sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)


@jax.jit
def _add(parts: list[list[jax.Array]]) -> list[jax.Array]:
    return [functools.reduce(jnp.add, [part[0] for part in each]) for each in parts]
