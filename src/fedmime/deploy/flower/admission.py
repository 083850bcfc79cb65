"""Which nodes are let in: those whose public keys lie in a directory, as long as they lie there.

Adding a file lets a node in, removing it shuts the node out, while the server runs. Both leave a line in the log.
"""

from __future__ import annotations

import hashlib
import logging
import time
from pathlib import Path

from fedmime.deploy.flower.control import Control
from fedmime.errors import ClusterError, ConfigError

_EVERY = 2.0  # seconds between two looks at the directory
_LOG = logging.getLogger("fedmime.nodes")


class Admission:
    """Keeps a SuperLink's nodes what a directory says.

    Args:
        control: the SuperLink.
        directory: of files `NAME.pub`.

    Attributes:
        control: the SuperLink.
    """

    def __init__(self, control: Control, directory: Path) -> None:
        self.control, self._directory = control, directory
        self._known: dict[str, tuple[str, int]] = {}  # by name: the digest of its key, and Flower's number
        self._refused: dict[str, str] = {}  # digests of files that hold no key, so that each is told once
        self._looked = -_EVERY

    def update(self) -> None:
        """Let in who is new, and shut out who is gone, if it is time to look."""
        if time.monotonic() - self._looked < _EVERY:
            return
        self._looked = time.monotonic()
        found = {path.stem: _digest(path) for path in sorted(self._directory.glob("*.pub"))}
        for name, (digest, node) in list(self._known.items()):
            if found.get(name) != digest:
                del self._known[name]
                self.control.unregister(node)
                _LOG.info("node %s with key %s is revoked", name, digest[:16])
        for name, digest in found.items():
            if name not in self._known and self._refused.get(name) != digest:
                self._let_in(name, digest)

    def _let_in(self, name: str, digest: str) -> None:
        try:
            self._known[name] = digest, self.control.register(self._directory / f"{name}.pub")
        except (ConfigError, ClusterError, OSError) as error:  # one bad file does not end a run
            self._refused[name] = digest
            _LOG.warning("node %s with key %s is not let in: %s", name, digest[:16], error)
        else:
            _LOG.info("node %s with key %s is registered", name, digest[:16])


def _digest(path: Path) -> str:
    """SHA-256 of a file; of nothing, if it has just been removed."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
