"""The devices a round is spread over: all cores of a CPU by default, one host device each."""

from __future__ import annotations

import functools
import os

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedmime.errors import ConfigError

AXIS, LANE = "device", "lane"


def use_all_cores() -> None:
    """Ask JAX for one CPU device per core. Without effect once JAX has started or the user has chosen a number."""
    if getattr(jax.config, "jax_num_cpu_devices", 0) > 0 or "xla_force_host_platform_device_count" in os.environ.get(
        "XLA_FLAGS", ""
    ):
        return
    try:
        jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    except RuntimeError:  # JAX has started: its devices are what there is
        return


@functools.cache
def mesh(devices: int | None = None) -> Mesh:
    """A mesh over the first `devices` local devices, or over all of them."""
    present = jax.local_devices()
    if devices is None:
        devices = len(present)
    if not 1 <= devices <= len(present):
        raise ConfigError(f"devices must be between 1 and {len(present)} on this machine, got {devices!r}")
    return Mesh(np.asarray(present[:devices]), (AXIS,))


def default_lanes() -> int:
    """Clients that one device trains side by side: one on a CPU core, many on an accelerator."""
    return 1 if jax.default_backend() == "cpu" else 16


def everywhere(mesh: Mesh) -> NamedSharding:
    """The same on every device."""
    return NamedSharding(mesh, PartitionSpec())


def spread(mesh: Mesh) -> NamedSharding:
    """The first axis over the devices."""
    return NamedSharding(mesh, PartitionSpec(AXIS))
