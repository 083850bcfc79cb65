"""Compiled code on disk that is run only if the caller wrote it, whole, and is loaded from a private copy.

The folder and the file must be the caller's own, and writable for nobody else: what another user put there is not run.
A file ends with the sha256 of what comes before it: what is damaged is built again, instead of ending the process. The
bytes that were checked are the bytes that are loaded, whatever happens to the file in between.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from fedmime.files import owned_alone, private_directory, user_cache, whole_file

_log = logging.getLogger(__name__)
_DIGEST = hashlib.sha256().digest_size


def kept(name: str, build: Callable[[], bytes]) -> tuple[bytes, str]:
    """A library by its name in the user's cache, built where it is not there, and where it is kept."""
    try:
        path = private_directory(user_cache() / "native") / name
    except OSError as error:
        _log.warning("compiled kernels are not kept: %s", error)
        return build(), "built for this process alone"
    content = _read(path)
    if content is None:
        content = build()
        _write(path, content)
    return content, str(path)


def load(content: bytes) -> ctypes.CDLL:
    """Load a library from its bytes: through a file without a name where the system has those, else a temporary one."""
    with contextlib.suppress(AttributeError, OSError):
        handle = os.memfd_create("fedmime-kernels")  # stays open: the loader knows libraries by their path
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(content)
        return ctypes.CDLL(f"/proc/self/fd/{handle}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.so"
        path.write_bytes(content)
        return ctypes.CDLL(str(path))


def _read(path: Path) -> bytes | None:
    """The library in a file, or None if it is not there, not the caller's own, or damaged."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
            content = file.read() if owned_alone(os.fstat(file.fileno())) else b""
    except OSError:
        return None
    library, digest = content[:-_DIGEST], content[-_DIGEST:]
    return library if hashlib.sha256(library).digest() == digest else None


def _write(path: Path, content: bytes) -> None:
    """Keep a library for the next process; without room on the disk it is used all the same."""
    try:
        with whole_file(path) as temporary:  # another process may be doing the same
            temporary.write_bytes(content + hashlib.sha256(content).digest())
    except OSError as error:
        _log.warning("compiled kernels are not kept: %s", error)
