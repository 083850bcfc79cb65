"""The log of keys: which were let in, shut out, and refused, by fingerprints instead of names.

A fingerprint is the one that `ssh-keygen -lf FILE.pub` shows, so the operator can tell whose key a line is about. The
launcher and the SuperLink both append to the file, which only their user can read.
"""

from __future__ import annotations

import base64
import collections
import hashlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

LOG = logging.getLogger("fedmime.nodes")
_FORMAT = "%(asctime)s %(message)s"
_NOBODY = "no key"
_KNOWN = 1024  # keys of which it is remembered when they were written down
_SPACING, _MOST = 60.0, 100  # seconds between two lines about one key; lines in that time


def written_to(path: Path | None) -> logging.Handler:
    """A handler that writes to the end of a file, or to the standard error stream."""
    if path is None:
        handler: logging.Handler = logging.StreamHandler()
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600))
        path.chmod(0o600)  # an earlier version made it readable for everybody
        handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter(_FORMAT))
    return handler


def fingerprint(key: bytes) -> str:
    """The fingerprint of a public key.

    Args:
        key: as OpenSSH writes it, or in PEM.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as s

    load = s.load_pem_public_key if key.lstrip().startswith(b"-----") else s.load_ssh_public_key
    try:
        blob = load(key).public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH).split()[1]
    except (ValueError, UnsupportedAlgorithm):
        return _NOBODY
    digest = hashlib.sha256(base64.b64decode(blob)).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


class Refusals:
    """Writes down keys that are refused. Who is refused again and again cannot fill the disk.

    Args:
        clock: seconds since whenever.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._begun, self._lines = clock, clock(), 0
        self._told: collections.OrderedDict[str, float] = collections.OrderedDict()

    def add(self, header: bytes, address: str, what: str, status: int) -> None:
        """Write down a request of a node that was refused.

        Args:
            header: what the request says its key is, in base 64.
            address: where it comes from.
            what: it asked for.
            status: of the response.
        """
        now = self._clock()
        try:
            key = fingerprint(base64.b64decode(header, validate=True))
        except ValueError:
            key = _NOBODY
        if now - self._begun > _SPACING:
            self._begun, self._lines = now, 0
        if now - self._told.get(key, -_SPACING) < _SPACING or self._lines >= _MOST:
            return
        self._told[key] = now
        self._told.move_to_end(key)
        if len(self._told) > _KNOWN:
            self._told.popitem(last=False)
        self._lines += 1
        LOG.warning("%s is refused from %s: %s, status %d", key, address, what, status)
