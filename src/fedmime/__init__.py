"""Federated learning that mimics centralized training: Mime, its peers, and everything around a round.

The public names are those that the stub `__init__.pyi` imports, where type checkers find them. They are loaded when
they are first used, so that the command line can print its help without starting JAX.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_bytes())
_HOMES = {name.name: line.module for line in _STUB.body if isinstance(line, ast.ImportFrom) for name in line.names}

__all__ = [*_HOMES]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a public name from its home: a module of this package, or an attribute of one."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fedmime' has no attribute {name!r}")
    if name != "deploy" and home != "fedmime.errors":  # these two do without JAX; before anything else starts it
        importlib.import_module("fedmime.devices").use_all_cores()
    module = home == __name__ or name == "communication"
    value = importlib.import_module(f"{home}.{name}") if module else getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
