"""The devices a round is spread over: all cores of a CPU by default, one host device each."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedmime import cores
from fedmime.errors import ConfigError
from fedmime.numbers import quote, whole

AXIS, LANE = "device", "lane"
EVERYWHERE, SPREAD = PartitionSpec(), PartitionSpec(AXIS)


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


def default_lanes() -> int:
    """Clients that one device trains side by side: one on a CPU core, many on an accelerator."""
    return 1 if jax.default_backend() == "cpu" else 16


def own_cores(devices: int) -> np.ndarray:
    """The number of each device that is to have a core of its own, or -1 for any where that would leave some idle.

    A process that does not use all cores keeps out of the way of others like it.
    """
    alone = jax.default_backend() == "cpu" and 1 < devices == cores.count()
    return np.arange(devices) if alone else np.full(devices, -1)


def everywhere(mesh: Mesh) -> NamedSharding:
    """The same on every device."""
    return NamedSharding(mesh, EVERYWHERE)


def on_all(tree: Any, mesh: Mesh) -> Any:
    """Numbers as arrays on every device; one that was put there before is not sent again. Other leaves stay."""
    place, wide = everywhere(mesh), bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]

    def held(leaf: Any) -> Any:
        return _held(leaf, wide, place) if isinstance(leaf, int | float) else leaf

    return jax.tree.map(held, tree)


@functools.lru_cache(maxsize=1024, typed=True)
def _held(number: float, wide: bool, place: NamedSharding) -> jax.Array:
    """What JAX makes of the number depends on whether 64 bits are on."""
    with jax.ensure_compile_time_eval():  # also if somebody traces a round: the array stays
        return jax.device_put(number, place)


def spread(mesh: Mesh) -> NamedSharding:
    """The first axis over the devices."""
    return NamedSharding(mesh, SPREAD)
