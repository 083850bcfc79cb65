"""A cache of compiled libraries on disk that never runs code somebody else wrote, nor a damaged file.

The directory and the file must belong to the user, and nobody else may write to them; otherwise another user of the
machine could place code there that this process would execute. Each file ends with the SHA-256 digest of its content,
so that a damaged library is built again instead of crashing the process. The bytes that were verified are the bytes
that are loaded, from a private copy: a change of the file between verification and loading has no effect.
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


def library(name: str, build: Callable[[], bytes]) -> tuple[bytes, str]:
    """A library from the user's cache, built and stored if it is not there.

    Args:
        name: file name of the library, which contains a digest of all that it depends on.
        build: compiles the library and returns its content.

    Returns:
        The content of the library, and a description of where it is: the path of the file, or a remark that the
        cache cannot be used. A directory that others can write to is not used; the library is then built for this
        process alone.
    """
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
    """Load a library from its content.

    The content is written to an anonymous file in memory where the system supports them (Linux), else to a temporary
    file that is deleted after loading.
    """
    with contextlib.suppress(AttributeError, OSError):
        # The handle stays open: with a reused number, the loader would take the next library for this one.
        handle = os.memfd_create("fedmime-kernels")
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(content)
        return ctypes.CDLL(f"/proc/self/fd/{handle}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.so"
        path.write_bytes(content)
        return ctypes.CDLL(str(path))


def _read(path: Path) -> bytes | None:
    """The library in a file; None if the file does not exist, is not the user's own, or does not match its digest.

    The owner is checked on the open file and symbolic links are not followed, so that the file cannot be exchanged
    between the check and the reading.
    """
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
            content = file.read() if owned_alone(os.fstat(file.fileno())) else b""
    except OSError:
        return None
    library, digest = content[:-_DIGEST], content[-_DIGEST:]
    return library if hashlib.sha256(library).digest() == digest else None


def _write(path: Path, content: bytes) -> None:
    """Store a library and its digest for later processes.

    A full disk is reported as a warning and not as an error: the library can be used without being stored.
    """
    try:
        with whole_file(path) as temporary:  # atomic, because another process may be writing the same file
            temporary.write_bytes(content + hashlib.sha256(content).digest())
    except OSError as error:
        _log.warning("compiled kernels are not kept: %s", error)
