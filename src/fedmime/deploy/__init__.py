"""Deployment: the algorithms of a simulation with real clients over a network.

A deployed round is a simulated one whose back end asks nodes elsewhere: `backend.py` is the server's half, `node.py`
the client's. Both only exchange byte strings (`protocol.py`), so any transport serves; `flower/` is the one that comes
with the library.
"""

from fedmime.deploy.secure.options import SecureSum

__all__ = ["SecureSum"]
