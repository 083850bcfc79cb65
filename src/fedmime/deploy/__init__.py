"""Deployment: the algorithms of a simulation with real clients over a network.

A deployed round is a simulated one whose back end asks nodes elsewhere: `backend.py` is the server's half, `node.py`
the client's. Both only exchange byte strings (`protocol.py`), so any transport serves; `flower/` is the one that comes
with the library.

The public names are loaded when they are first used: a process that only passes messages on does without JAX, and a
client written in PyTorch may run where JAX and Flower are not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmime.deploy import torch_layouts as torch_layouts
    from fedmime.deploy.flower.client_app import client_app as client_app
    from fedmime.deploy.flower.client_app import torch_client_app as torch_client_app
    from fedmime.deploy.flower.server_app import server_app as server_app
    from fedmime.deploy.node import JaxNode as JaxNode
    from fedmime.deploy.protocol import Node as Node
    from fedmime.deploy.secure.options import SecureSum as SecureSum
    from fedmime.deploy.server import Waiting as Waiting
    from fedmime.deploy.server import run as run
    from fedmime.deploy.server import run_setting as run_setting
    from fedmime.deploy.torch_node import torch_client as torch_client
    from fedmime.deploy.transport import Failure as Failure
    from fedmime.deploy.transport import LoopTransport as LoopTransport
    from fedmime.deploy.transport import Transport as Transport

_HOMES = {
    "Failure": "transport",
    "JaxNode": "node",
    "LoopTransport": "transport",
    "Node": "protocol",
    "SecureSum": "secure.options",
    "Transport": "transport",
    "Waiting": "server",
    "client_app": "flower.client_app",
    "run": "server",
    "run_setting": "server",
    "server_app": "flower.server_app",
    "torch_client": "torch_node",
    "torch_client_app": "flower.client_app",
}
__all__ = [*_HOMES, "torch_layouts"]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a public name from its home."""
    if name == "torch_layouts":
        return importlib.import_module("fedmime.deploy.torch_layouts")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedmime.deploy' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"fedmime.deploy.{_HOMES[name]}"), name)
    globals()[name] = value  # importing the module `torch_client` has put the module in the function's place
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
