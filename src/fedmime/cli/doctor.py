"""`fedmime doctor`: look whether everything is here that a run needs."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedmime.errors import ConfigError

OLDEST = {"ray": (2, 56), "flwr": (1, 41)}  # what the extras ask for


@dataclasses.dataclass(frozen=True)
class Doctor:
    """Look at the installation: versions, devices, caches, published data, and a tiny run that is saved and resumed."""

    data_dir: Path | None = None
    """Where published files are kept; by default $FEDMIME_DATA_DIR or the user's cache."""
    ray_address: str | None = None
    """A Ray cluster that runs are to join; by default $RAY_ADDRESS. It is not connected to."""
    json: bool = False
    """Print JSON instead of a table."""


def run(args: Doctor) -> int:
    """Look at everything; 0 if all that a run needs is there."""
    from fedmime.cli import session

    session.start()
    checks: dict[str, Callable[[], str]] = {
        "versions": _versions,
        "devices": _devices,
        "native kernels": _kernels,
        "cache": _cache,
        "extras": _extras,
        "ray": lambda: _ray(args.ray_address or os.environ.get("RAY_ADDRESS")),
        "flower": _flower,
        "published data": lambda: _data(args.data_dir),
        "a run, saved and resumed": _trial,
    }
    found: list[dict[str, Any]] = []
    for name, check in checks.items():
        try:
            found.append({"check": name, "ok": True, "found": check()})
        except Exception as error:  # whatever is wrong is what the doctor is asked for
            found.append({"check": name, "ok": False, "found": f"{type(error).__name__}: {error}"})
    if args.json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table("check", "", "found", title="fedmime doctor")
        for row in found:
            table.add_row(row["check"], "[green]ok[/]" if row["ok"] else "[red]wrong[/]", row["found"])
        Console().print(table)
    return 0 if all(row["ok"] for row in found) else 1


def _versions() -> str:
    import fedmime.engine  # noqa: F401 (it asks JAX for one device a core, before JAX starts)
    from fedmime.runs.provenance import environment

    found = environment()
    return ", ".join(f"{name} {found[name]}" for name in ("fedmime", "python", "jax", "numpy", "orbax-checkpoint"))


def _devices() -> str:
    import jax

    import fedmime.engine  # noqa: F401 (it asks JAX for one device a core)

    devices = jax.devices()
    return f"{len(devices)} x {devices[0].device_kind} on {os.cpu_count()} cores"


def _kernels() -> str:
    from fedmime.kernels import build

    return build.status()


def _cache() -> str:
    from fedmime.files import user_cache

    folder = user_cache()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder):
        pass
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{folder} ({held / 1e6:.0f} MB)"


def _extras() -> str:
    from importlib.util import find_spec

    wanted = ("matplotlib", "flax", "equinox", "optuna", "pandas")
    return ", ".join(f"{name} {'yes' if find_spec(name) else 'no'}" for name in wanted)


def _ray(address: str | None) -> str:
    """The version of Ray, the cores for workers here, and the token where there is a cluster to join."""
    found = _installed("ray")
    if found is None:
        return "not installed; --backend ray needs pip install 'fedmime[ray]'"
    from fedmime.devices import cores
    from fedmime.engine.backends.ray import cluster

    cluster.check(address)
    where = "runs start a Ray of their own" if not address else f"there is a token to join {address}"
    return f"{found}, {cores()} cores here; {where}"


def _flower() -> str:
    """The version of Flower, which deployments use."""
    return _installed("flwr") or "flwr is not installed; only deployments need it"


def _installed(package: str) -> str | None:
    """The name and version of a package, which is not imported; None if it is missing. One that is too old is wrong."""
    try:
        found, oldest = version(package), OLDEST[package]
    except PackageNotFoundError:
        return None
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < oldest:
        raise ConfigError(f"{package}: needs {'.'.join(map(str, oldest))} or later, got {found!r}")
    return f"{package} {found}"


def _data(data_dir: Path | None) -> str:
    from fedmime.data import catalog

    folder = catalog.data_directory(data_dir)
    here = [
        d.name
        for d in catalog.DATASETS.values()
        if any((folder / n).exists() for s in d.splits for n in d.candidates(s))
    ]
    return f"{', '.join(here) or 'none'} in {folder} (embedded data needs no files)"


def _trial() -> str:
    import dataclasses

    from fedmime.engine import Saving
    from fedmime.experiments import train
    from fedmime.experiments.setting import Setting

    with tempfile.TemporaryDirectory() as folder:
        short = train.prepare(Setting(task="digits-logistic", rounds=2, cohort=4))
        train.run(short, folder, saving=Saving(every=1))
        longer = dataclasses.replace(short, setting=dataclasses.replace(short.setting, rounds=4))
        result = train.run(longer, folder, saving=Saving(every=1))
    return f"digits: {len(result.history['round'])} rounds, accuracy {result.history['test_accuracy'][-1]:.1%}"
