"""Fetch published files: resumed where they broke off, checked against their sha256, placed whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedmime.data import catalog
from fedmime.data.limits import DEFAULT, Limits
from fedmime.data.unpack import unpack_tar
from fedmime.errors import DataError
from fedmime.files import flush, pin, pinned, sha256_of

Progress = Callable[[str, int, int | None], None]  # what, bytes so far, bytes in all if known
_BLOCK = 1 << 18


def fetch(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    base_url: str = catalog.TFF_URL,
    limits: Limits = DEFAULT,
) -> list[Path]:
    """Download a published data set and unpack it into `data_dir`; what is there and sound is left alone.

    The archives' sha256 are pinned in the catalogue, those of the unpacked files go into `SHA256SUMS` beside them.
    """
    dataset = catalog.published(name)
    directory = catalog.data_directory(data_dir)
    files: list[Path] = []
    for archive in dataset.archives:
        wanted = [directory / member for member in archive.members]
        if not all(path.is_file() and pinned(path) == sha256_of(path) for path in wanted):
            packed = download(base_url + archive.name, directory / archive.name, archive.sha256, progress)
            wanted = unpack_tar(packed, directory, list(archive.members), limits)
            pin(wanted)
            packed.unlink()
        files += wanted
    return files


def download(
    url: str,
    target: Path,
    sha256: str,
    progress: Progress | None = None,
    attempts: int = 4,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> Path:
    """One file over HTTP(S). What arrived is kept in `target.part` and continued, also by a later call."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"{url!r}: accepted are http and https addresses")
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file() and sha256_of(target) == sha256:
        return target
    part = target.with_name(f"{target.name}.part")
    for attempt in range(1, attempts + 1):
        try:
            _continue(url, part, progress, timeout)
            break
        except urllib.error.HTTPError as error:
            if error.code < 500 or attempt == attempts:
                raise DataError(f"{url!r}: the server answers {error.code} {error.reason}") from None
        except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
            if attempt == attempts:
                raise DataError(_offline(url, part, error)) from None
        time.sleep(pause * 2 ** (attempt - 1))
    return _place(part, target, sha256, url)


def _continue(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    """Append what is missing; start over if the server has another version or cannot continue."""
    have = part.stat().st_size if part.exists() else 0
    version = _version(part)
    headers = {"User-Agent": "fedmime"}
    if have and version:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (the scheme was checked)
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=timeout)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing, or the file shrank: its sha256 will tell
            return
        raise
    with response:
        resumed = response.status == 206
        start = have if resumed else 0
        left = response.headers.get("Content-Length")
        total = start + int(left) if left is not None and left.isdigit() else None
        _remember(part, response.headers.get("ETag") or response.headers.get("Last-Modified"))
        _receive(response, part, start, total, progress)


def _receive(response: HTTPResponse, part: Path, start: int, total: int | None, progress: Progress | None) -> None:
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)
        while data := response.read(_BLOCK):
            file.write(data)
            if progress:
                progress(part.name.removesuffix(".part"), file.tell(), total)
        done = file.tell()
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


def _place(part: Path, target: Path, sha256: str, url: str) -> Path:
    """Rename what arrived, if it is what was promised; else remove it, so that the next call starts anew."""
    found = hashlib.sha256(b"").hexdigest() if not part.exists() else sha256_of(part)
    _note(part).unlink(missing_ok=True)
    if found != sha256:
        part.unlink(missing_ok=True)
        raise DataError(f"{url!r}: sha256 differs: found {found}, expected {sha256}; nothing was kept")
    flush(part)
    os.replace(part, target)
    flush(target.parent)
    return target


def _note(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _remember(part: Path, version: Any) -> None:
    _note(part).write_text(json.dumps({"version": version}), encoding="utf-8")


def _version(part: Path) -> str | None:
    """Which version of the file the part belongs to, as the server named it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return json.loads(_note(part).read_text(encoding="utf-8")).get("version")
    return None


def _offline(url: str, part: Path, error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    kept = f"; {part.stat().st_size:,} bytes are kept and will be continued" if part.exists() else ""
    return (
        f"cannot fetch {url!r}: {' '.join(str(reason).split())}{kept}; without a network, copy the file from another "
        "machine and pass data_dir, or use the embedded 'handwriting' or 'digits'"
    )
