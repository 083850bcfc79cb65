"""Unpack downloaded archives as streams, never more than is allowed, never outside their folder."""

from __future__ import annotations

import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from fedmime.data.limits import DEFAULT, Limits
from fedmime.errors import DataError
from fedmime.files import whole_file

_BLOCK = 1 << 20
Progress = Callable[[int, int | None], None]


def unpack_lzma(
    source: Path, target: Path, limits: Limits = DEFAULT, progress: Progress | None = None, memory: int = 2**30
) -> Path:
    """Decompress an `.lzma` or `.xz` file into `target`, which appears whole or not at all."""
    decoder = lzma.LZMADecompressor(memlimit=memory)
    written = 0
    with source.open("rb") as packed, whole_file(target) as temporary, temporary.open("wb") as out:
        while not decoder.eof:
            try:
                data = decoder.decompress(packed.read(_BLOCK) if decoder.needs_input else b"", max_length=_BLOCK)
            except (lzma.LZMAError, EOFError) as error:
                raise DataError(f"{str(source)!r} is not a sound LZMA file: {error}") from None
            if not data and decoder.needs_input and packed.tell() == source.stat().st_size:
                raise DataError(f"{str(source)!r} is cut off: the LZMA stream does not end")
            out.write(data)
            written = _bounded(written + len(data), source, limits)
            if progress:
                progress(packed.tell(), source.stat().st_size)
    return target


def unpack_tar(source: Path, folder: Path, members: list[str], limits: Limits = DEFAULT) -> list[Path]:
    """Take exactly the named files out of a tar archive; anything else in it is left there."""
    found: dict[str, Path] = {}
    try:
        with tarfile.open(source, "r|*") as archive:
            for item in archive:
                name = Path(item.name).name
                if name in members and item.isfile():
                    content = archive.extractfile(item)
                    assert content is not None
                    found[name] = _place(content, folder / name, source, limits)
    except (tarfile.TarError, EOFError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # a full disk is not the archive's fault
            raise
        raise DataError(f"{str(source)!r} is not a sound archive: {' '.join(str(error).split())}") from None
    missing = [name for name in members if name not in found]
    if missing:
        raise DataError(f"{str(source)!r}: the archive lacks {missing}; it holds {sorted(found) or 'none of them'}")
    return [found[name] for name in members]


def _place(content: IO[bytes], target: Path, source: Path, limits: Limits) -> Path:
    written = 0
    with whole_file(target) as temporary, temporary.open("wb") as out:
        while data := content.read(_BLOCK):
            out.write(data)
            written = _bounded(written + len(data), source, limits)
    return target


def _bounded(written: int, source: Path, limits: Limits) -> int:
    if written > limits.file_bytes:
        raise DataError(f"{str(source)!r} unpacks to more than the accepted {limits.file_bytes:,} bytes")
    return written
