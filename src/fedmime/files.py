"""Files that appear whole or not at all, and whose contents are known by their sha256."""

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

from fedmime.errors import ConfigError, DataError

SUMS = "SHA256SUMS"  # the usual `sha256sum` list beside data files


def user_cache() -> Path:
    """Where what can be made again is kept: `$FEDMIME_CACHE`, or else the user's cache; `OSError` if there is none."""
    if given := os.environ.get("FEDMIME_CACHE"):
        return Path(given)
    return home_cache()


def home_cache() -> Path:
    """The package's folder in the user's cache; `OSError` for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedmime"
    except RuntimeError:
        raise FileNotFoundError("this user has no home with a cache; name one in XDG_CACHE_HOME") from None


def private_directory(path: Path) -> Path:
    """The directory, made where it is not there, once nobody but the caller can write to it; else `PermissionError`.

    What is in it can then be run: it was put there by the caller.
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
    """Refuse with `OSError` a directory that cannot be made or written to; nothing is made."""
    there = next(above for above in (path.absolute(), *path.absolute().parents) if above.exists())
    for wrong, code in ((not there.is_dir(), errno.ENOTDIR), (not os.access(there, os.W_OK | os.X_OK), errno.EACCES)):
        if wrong:
            raise OSError(code, os.strerror(code), str(there))


def owned_alone(found: os.stat_result) -> bool:
    """Whether a file or directory is the caller's, and writable for neither its group nor others."""
    if not hasattr(os, "geteuid"):  # Windows: folders of users are private, and modes say nothing
        return True
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes."""
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


def pinned(path: Path) -> str | None:
    """The sha256 that the `SHA256SUMS` beside a file promises for it, or None."""
    listing = path.parent / SUMS
    if not listing.is_file():
        return None
    for line in listing.read_text(encoding="utf-8").splitlines():
        digest, _, name = line.strip().partition(" ")
        if name.lstrip(" *") == path.name:
            return digest.lower()
    return None


def require(path: Path, sha256: str | None = None) -> Path:
    """The path, once the file exists and is the one its sha256 (given, or in `SHA256SUMS`) promises."""
    if not path.is_file():
        raise DataError(f"no file {str(path)!r}")
    expected = sha256 or pinned(path)
    if expected is None:
        return path
    found = sha256_of(path)
    if found != expected.lower():
        raise DataError(f"{str(path)!r}: sha256 differs: found {found}, expected {expected}; fetch the file again")
    return path


def pin(paths: list[Path]) -> None:
    """Write the sha256 of files of one folder into its `SHA256SUMS`, keeping its other lines."""
    listing = paths[0].parent / SUMS
    kept = {}
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8").splitlines():
            digest, _, name = line.strip().partition(" ")
            kept[name.lstrip(" *")] = digest
    kept |= {path.name: sha256_of(path) for path in paths}
    with whole_file(listing) as temporary:
        temporary.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(kept.items())), encoding="utf-8")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path to write; on success it is flushed to disk and renamed to `path`, else removed."""
    with _beside(path, _empty_file) as temporary:
        yield temporary
        os.chmod(temporary, 0o644)
        flush(temporary)
        os.replace(temporary, path)
        flush(path.parent)


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A temporary directory to fill; on success everything in it is flushed and it becomes `path`, else it is removed.

    `path` must not exist: data is never overwritten in place.
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
    """A new temporary file or directory for `path`; in the end it is gone or has become `path`.

    It is locked as long as this process writes to it. So what a killed process left is known by its free lock, and is
    removed by the next that writes the same path.
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
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):  # in use, somebody else's, or on a file system without locks
            handle = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(left)
            finally:
                os.close(handle)


def _claimed(path: Path, make: Callable[..., str]) -> tuple[Path, int]:
    """A new temporary path and the handle that locks it."""
    while True:
        temporary = Path(make(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
        with contextlib.suppress(FileNotFoundError):  # taken for left over before it was locked: once more
            handle = os.open(temporary, os.O_RDONLY)
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_nlink:
                return temporary, handle
            os.close(handle)


def _empty_file(**where: Any) -> str:
    handle, name = tempfile.mkstemp(**where)
    os.close(handle)
    return name


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Push a file's or a directory's contents to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
