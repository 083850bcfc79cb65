"""Federated learning that mimics centralized training: Mime, its peers, and everything around a round.

Names are loaded when they are first used, so that the command line can print its help without starting JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmime import algorithms, backends, data, models, optimizers, theory
    from fedmime.aggregation import communication
    from fedmime.algorithms import State, params
    from fedmime.engine import (
        Cohort,
        DiskMemory,
        Gate,
        Info,
        Participation,
        RamMemory,
        Run,
        Saving,
        run_round,
        simulate,
    )
    from fedmime.errors import (
        CheckpointError,
        ClientFailed,
        ConfigError,
        DataError,
        Diverged,
        FedmimeError,
        LockError,
        Stopped,
    )
    from fedmime.vector import Vector

_HOMES = {
    "fedmime": ("algorithms", "backends", "data", "models", "optimizers", "theory"),
    "fedmime.aggregation": ("communication",),
    "fedmime.algorithms": ("State", "params"),
    "fedmime.engine": (
        "Cohort",
        "DiskMemory",
        "Gate",
        "Info",
        "Participation",
        "RamMemory",
        "Run",
        "Saving",
        "run_round",
        "simulate",
    ),
    "fedmime.errors": (
        "ClientFailed",
        "CheckpointError",
        "ConfigError",
        "DataError",
        "Diverged",
        "FedmimeError",
        "LockError",
        "Stopped",
    ),
    "fedmime.vector": ("Vector",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CheckpointError",
    "ClientFailed",
    "Cohort",
    "ConfigError",
    "DataError",
    "DiskMemory",
    "Diverged",
    "FedmimeError",
    "Gate",
    "Info",
    "LockError",
    "Participation",
    "RamMemory",
    "Run",
    "Saving",
    "State",
    "Stopped",
    "Vector",
    "algorithms",
    "backends",
    "communication",
    "data",
    "models",
    "optimizers",
    "params",
    "run_round",
    "simulate",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedmime' has no attribute {name!r}")
    home = _HOME[name]
    if home != "fedmime.errors":  # before anything else starts JAX
        importlib.import_module("fedmime.devices").use_all_cores()
    if home == "fedmime" or name == "communication":
        value = importlib.import_module(f"{home}.{name}")
    else:
        value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
