"""One JAX device for each core of a CPU, unless the user has chosen a number."""

from __future__ import annotations

import os

import jax


def use_all_cores() -> None:
    """Ask JAX for one CPU device per core. It has no effect once JAX has started or the user has chosen a number."""
    if getattr(jax.config, "jax_num_cpu_devices", 0) > 0 or "xla_force_host_platform_device_count" in os.environ.get(
        "XLA_FLAGS", ""
    ):
        return
    try:
        jax.config.update("jax_num_cpu_devices", cores())
    except RuntimeError:  # JAX has started: its devices are what there is
        return


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
