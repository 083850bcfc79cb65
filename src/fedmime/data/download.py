"""Fetch published files: resumed where they broke off, checked against their sha256, placed whole.

A server is not trusted: how long it may take, how much it may send and where it may redirect to are bounded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from fedmime.data import catalog
from fedmime.data.checksums import pin, pinned
from fedmime.data.limits import DEFAULT, Limits
from fedmime.data.unpack import unpack_tar
from fedmime.errors import ConfigError, DataError
from fedmime.files import flush, sha256_of

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
    _check_address(base_url)
    directory = catalog.data_directory(data_dir)
    files: list[Path] = []
    for archive in dataset.archives:
        wanted = [directory / member for member in archive.members]
        if not all(path.is_file() and pinned(path) == sha256_of(path) for path in wanted):
            packed = download(
                base_url + archive.name, directory / archive.name, archive.sha256, progress, limits=limits
            )
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
    deadline: float = 6 * 3600.0,
    limits: Limits = DEFAULT,
) -> Path:
    """One file over HTTP(S). What arrived is kept in `target.part` and continued, also by a later call.

    Args:
        url: the address.
        target: where the file goes.
        sha256: of the file.
        progress: told of what arrives.
        attempts: how often a broken connection is taken up again.
        pause: seconds before the second attempt; doubled before each further one.
        timeout: seconds without a single byte that end an attempt.
        deadline: seconds after which the download ends, whatever still arrives.
        limits: how large the file may be.
    """
    _check_address(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file() and sha256_of(target) == sha256:
        return target
    part = target.with_name(f"{target.name}.part")
    end = time.monotonic() + deadline
    for attempt in range(1, attempts + 1):
        try:
            _continue(url, part, progress, timeout, end, limits)
            break
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500 or attempt == attempts:
                raise DataError(f"{url!r}: the server answers {error.code} {error.reason}") from None
        except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
            if attempt == attempts or time.monotonic() >= end:
                raise DataError(_offline(url, part, error)) from None
        time.sleep(pause * 2 ** (attempt - 1))
    return _place(part, target, sha256, url)


def _check_address(url: str) -> None:
    """Raise unless a connection can be tried: scheme, host and port make sense, and no character needs escaping."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        sound = sound and re.fullmatch("[!-~]+", url)
        (parts.hostname or "").encode("idna")
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError(f"{url!r:.200} is no address to fetch from; accepted are http and https addresses")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but to HTTP(S) only."""

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        try:
            _check_address(urljoin(req.full_url, headers.get("Location") or ""))
        except ValueError as error:
            fp.close()
            raise DataError(f"{req.full_url!r}: the server redirects elsewhere: {error}") from None
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _answer(request: urllib.request.Request, timeout: float, end: float) -> HTTPResponse:
    """The server's answer. It is waited for in a thread, as its head may come a byte at a time."""
    answer: Future[HTTPResponse] = Future()

    def ask() -> None:
        try:
            answer.set_result(urllib.request.build_opener(_Redirects).open(request, timeout=timeout))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.result(max(end - time.monotonic(), 0))
    except TimeoutError:
        if answer.done():
            raise
        raise TimeoutError("no answer before the deadline") from None


def _continue(url: str, part: Path, progress: Progress | None, timeout: float, end: float, limits: Limits) -> None:
    """Append what is missing; start over if the server has another version or cannot continue."""
    have = part.stat().st_size if part.exists() else 0
    version = _version(part)
    headers = {"User-Agent": "fedmime"}
    if have and version:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (the scheme was checked)
    try:
        response = _answer(request, timeout, end)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing, or the file shrank: its sha256 will tell
            error.close()
            return
        raise
    with response:
        resumed = response.status == 206
        start = have if resumed else 0
        left = response.headers.get("Content-Length") or ""
        total = start + int(left) if re.fullmatch("[0-9]{1,18}", left) else None
        _bounded(total or 0, url, part, limits)
        _remember(part, response.headers.get("ETag") or response.headers.get("Last-Modified"))
        with part.open("r+b" if start else "wb") as file:
            file.seek(start)
            while data := response.read1(_BLOCK):
                file.write(data)
                _bounded(file.tell(), url, part, limits)
                if progress:
                    progress(part.name.removesuffix(".part"), file.tell(), total)
                if time.monotonic() >= end:
                    raise TimeoutError("not finished before the deadline")
            done = file.tell()
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


def _bounded(size: int, url: str, part: Path, limits: Limits) -> None:
    """Raise, and keep nothing, if a file is larger than accepted."""
    if size > limits.download_bytes:
        part.unlink(missing_ok=True)
        _note(part).unlink(missing_ok=True)
        raise DataError(f"{url!r}: {size:,} bytes; accepted are at most {limits.download_bytes:,}; nothing was kept")


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
