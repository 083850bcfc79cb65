"""Which nodes are let in: those whose public keys lie in a directory, as long as they lie there.

Adding a file lets a node in, removing it shuts the node out, while the server runs. Both leave a line in the log, which
knows keys by their fingerprints and not by the names of their files. A key that was shut out stays out for as long as
its SuperLink runs: Flower takes no key twice.
"""

from __future__ import annotations

import time
from pathlib import Path

from fedmime.deploy.flower.audit import LOG, fingerprint
from fedmime.deploy.flower.control import Control
from fedmime.errors import ClusterError, ConfigError

_EVERY = 2.0  # seconds between two looks at the directory
_REVOKED = "it was revoked; make a new key, or start the server again"


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
        self._known: dict[str, tuple[bytes, int]] = {}  # by file: what it holds, and Flower's number of the node
        self._told: dict[str, tuple[bytes, str]] = {}  # by file: why it is not let in, so that each is told once
        self._revoked: set[str] = set()  # fingerprints
        self._looked = -_EVERY

    def update(self) -> None:
        """Let in who is new, and shut out who is gone, if it is time to look."""
        if time.monotonic() - self._looked < _EVERY:
            return
        self._looked = time.monotonic()
        found = {path.name: _content(path) for path in sorted(self._directory.glob("*.pub"))}
        for name, (key, node) in list(self._known.items()):
            if found.get(name) != key:
                self.control.unregister(node)
                del self._known[name]
                self._revoked.add(fingerprint(key))
                LOG.info("%s is revoked", fingerprint(key))
        for name, key in found.items():
            if name not in self._known:
                self._let_in(name, key)

    def _let_in(self, name: str, key: bytes) -> None:
        try:
            if fingerprint(key) in self._revoked:
                raise ConfigError(_REVOKED)
            self._known[name] = key, self.control.register(self._directory / name)
        except (ConfigError, ClusterError, OSError) as error:  # one bad file does not end a run, and is tried again
            told = key, f"{fingerprint(key)} is not let in: {error}"
            if self._told.get(name) != told:
                self._told[name] = told
                LOG.warning("%s", told[1])
        else:
            LOG.info("%s is registered", fingerprint(key))


def _content(path: Path) -> bytes:
    """What a file holds; nothing, if it has just been removed."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
