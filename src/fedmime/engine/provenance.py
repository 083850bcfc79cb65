"""Where a run was made: versions, machine, source."""

from __future__ import annotations

import datetime
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from fedmime.kernels import build

_PACKAGES = ("fedmime", "jax", "jaxlib", "numpy", "optax", "orbax-checkpoint")


def environment() -> dict[str, Any]:
    """Versions of what computes, the devices, and the commit of the source if it is in a work tree."""
    found: dict[str, Any] = {name: _version(name) for name in _PACKAGES}
    return found | {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "devices": [device.device_kind for device in jax.devices()],
        "native": build.ready(),
        "float64": bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
        "git": _commit(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
