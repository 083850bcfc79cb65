"""Which fedmime this is, to the last line: processes that work on one run have to be the same."""

from __future__ import annotations

import functools
import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@functools.cache
def exact() -> str:
    """The version of this package with a digest of its files, because a checkout changes more often than its number."""
    total, root = hashlib.sha256(), Path(__file__).parent
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.[ch]")]):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return f"{_number()}+{total.hexdigest()[:12]}"


def _number() -> str:
    try:
        return version("fedmime")
    except PackageNotFoundError:  # run from its source
        return "0"
