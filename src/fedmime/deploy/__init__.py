"""Deployment: the algorithms of a simulation with real clients over a network.

A deployed round is a simulated one whose back end asks nodes elsewhere: `backend.py` is the server's half, `node.py`
the client's. Both only exchange byte strings (`protocol.py`), so any transport serves; `flower/` is the one that comes
with the library.

Importing this package needs NumPy alone: a client written in PyTorch may run where JAX is not installed.
"""

from fedmime.deploy import torch_layouts
from fedmime.deploy.protocol import Node
from fedmime.deploy.torch_client import torch_client

__all__ = ["Node", "torch_client", "torch_layouts"]
