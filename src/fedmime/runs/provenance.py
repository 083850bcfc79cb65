"""The provenance of a run: the versions, devices and source that its numbers were computed with.

These facts are recorded in `env.json` and do not decide whether a run can be resumed.
"""

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
    """The environment as plain facts.

    Returns:
        The versions of the packages that compute, Python and platform, the kinds of the devices, whether the C kernels
        are used (`"native"`), whether float64 is on, the commit of the source if it is in a git work tree, and the time
        in UTC.
    """
    found: dict[str, Any] = {name: _version(name) for name in _PACKAGES}
    return found | {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "devices": [device.device_kind for device in jax.devices()],
        "native": build.available(),
        "float64": bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
        "git": _commit(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _version(name: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The git commit of the source; None if it is not in a work tree or git is not installed."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
