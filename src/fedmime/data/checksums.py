"""The digests of data files: `SHA256SUMS` beside them, read, checked and written."""

from __future__ import annotations

from pathlib import Path

from fedmime.errors import DataError
from fedmime.files import sha256_of, whole_file

SUMS = "SHA256SUMS"  # the list beside data files, in the format of the `sha256sum` command


def pinned(path: Path) -> str | None:
    """The SHA-256 that the `SHA256SUMS` beside a file lists for it, or None."""
    listing = path.parent / SUMS
    if not listing.is_file():
        return None
    for line in listing.read_text(encoding="utf-8").splitlines():
        digest, _, name = line.strip().partition(" ")
        if name.lstrip(" *") == path.name:
            return digest.lower()
    return None


def require(path: Path, sha256: str | None = None) -> Path:
    """The path of a file, after it was verified that the file exists and has the expected content.

    Args:
        path: the file.
        sha256: the expected digest; by default the one in `SHA256SUMS`, if there is one.

    Raises:
        DataError: the file does not exist or has another digest.
    """
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
    """Record the digests of files of one directory in its `SHA256SUMS`, and keep the other lines of the list."""
    listing = paths[0].parent / SUMS
    kept = {}
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8").splitlines():
            digest, _, name = line.strip().partition(" ")
            kept[name.lstrip(" *")] = digest
    kept |= {path.name: sha256_of(path) for path in paths}
    with whole_file(listing) as temporary:
        temporary.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(kept.items())), encoding="utf-8")
