"""Files that appear whole or not at all, private directories, and SHA-256 digests.

A file that others may read while it is written, or that a killed process may leave behind, is first written to a
temporary path in the same directory, flushed to disk, and then renamed, which is atomic.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedmime.errors import ConfigError


def user_cache() -> Path:
    """The directory for files that can be made again: `$FEDMIME_CACHE`, else `home_cache`."""
    if given := os.environ.get("FEDMIME_CACHE"):
        return Path(given)
    return home_cache()


def home_cache() -> Path:
    """The package's directory in the user's cache (`XDG_CACHE_HOME` or `~/.cache`); `OSError` without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedmime"
    except RuntimeError:
        raise FileNotFoundError("this user has no home with a cache; name one in XDG_CACHE_HOME") from None


def private_directory(path: Path) -> Path:
    """Create a directory to which only the user can write, or verify that an existing one is such.

    Code that is found in it can be executed, because nobody else can have put it there. Therefore no directory above it
    may be writable for everybody either, unless its sticky bit prevents renaming, as in `/tmp`.

    Raises:
        PermissionError: somebody else can write to the directory or replace it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    replaceable = any(above.stat().st_mode & 0o1002 == 0o002 for above in path.absolute().parents)
    if not stat.S_ISDIR(found.st_mode) or not owned_alone(found) or replaceable:
        raise PermissionError(f"{str(path)!r} is no directory that only you can write to; remove it or name another")
    path.chmod(0o700)
    return path


def require_writable(path: Path) -> None:
    """Raise `OSError` if a directory cannot be created or written to; nothing is created."""
    there = next(above for above in (path.absolute(), *path.absolute().parents) if above.exists())
    for wrong, code in ((not there.is_dir(), errno.ENOTDIR), (not os.access(there, os.W_OK | os.X_OK), errno.EACCES)):
        if wrong:
            raise OSError(code, os.strerror(code), str(there))


def owned_alone(found: os.stat_result) -> bool:
    """Whether a file or directory belongs to the user, and neither its group nor others may write to it."""
    if not hasattr(os, "geteuid"):  # Windows: users' directories are private, and modes carry no information
        return True
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds; `ValueError` if it holds anything else."""
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{str(path)!r} is damaged: it must hold a JSON object")
    return found


@contextlib.contextmanager
def whole_file(path: Path, mode: int = 0o644) -> Iterator[Path]:
    """Write a file atomically.

    Args:
        path: the file.
        mode: who may read it, by default everybody.

    Yields:
        A temporary path to write to. When the block ends normally it is flushed to disk and renamed to `path`,
        replacing an earlier file; when the block raises, it is removed.
    """
    with _beside(path, _empty_file) as temporary:
        yield temporary
        os.chmod(temporary, mode)
        flush(temporary)
        os.replace(temporary, path)
        flush(path.parent)


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Create a directory atomically. It must not exist yet: data is never overwritten in place.

    Yields:
        A temporary directory to fill. When the block ends normally its content is flushed to disk and it is renamed to
        `path`; when the block raises, it is removed.
    """
    if path.exists():
        raise ConfigError(f"{str(path)!r} exists already; choose another path or remove it first")
    with _beside(path, tempfile.mkdtemp) as temporary:
        yield temporary
        os.chmod(temporary, 0o755)  # noqa: S103 (temporary directories are private)
        for item in sorted(temporary.rglob("*"), reverse=True):
            flush(item)
        flush(temporary)
        os.rename(temporary, path)
        flush(path.parent)


@contextlib.contextmanager
def _beside(path: Path, make: Callable[..., str]) -> Iterator[Path]:
    """A new temporary file or directory next to `path`; at the end it has been renamed or is removed.

    It is locked as long as this process writes to it. So temporary paths that a killed process left are recognised by
    their free locks, and are removed by the next process that writes the same path.

    Args:
        path: the final path.
        make: creates the temporary file or directory, with the arguments of `tempfile.mkdtemp`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_over(path)
    temporary, lock = _claimed(path, make)
    try:
        yield temporary
    finally:
        _remove(temporary)
        os.close(lock)


def _remove_left_over(path: Path) -> None:
    """Remove temporary paths of `path` that no process has locked."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):  # in use, somebody else's, or on a file system without locks
            handle = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(left)
            finally:
                os.close(handle)


def _claimed(path: Path, make: Callable[..., str]) -> tuple[Path, int]:
    """Create a temporary path and lock it.

    Between creation and locking another process may take the path for left over and remove it; then it is created
    again.

    Returns:
        The path, and the file descriptor that holds the lock.
    """
    while True:
        temporary = Path(make(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
        with contextlib.suppress(FileNotFoundError):  # removed by another process before it was locked
            handle = os.open(temporary, os.O_RDONLY)
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_nlink:
                return temporary, handle
            os.close(handle)


def _empty_file(**where: Any) -> str:
    """Create an empty temporary file, with the arguments of `tempfile.mkstemp`, and return its path."""
    handle, name = tempfile.mkstemp(**where)
    os.close(handle)
    return name


def _remove(path: Path) -> None:
    """Remove a file or a directory with its content, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Flush a file's or a directory's content to disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
