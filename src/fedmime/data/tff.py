"""TensorFlow Federated's published files: HDF5 (until February 2021) and SQLite (since), read without TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fedmime.data.arrays import same_fields
from fedmime.data.checksums import pin, require
from fedmime.data.limits import DEFAULT, Limits
from fedmime.data.population import Field, Population, describe
from fedmime.data.tff_sqlite import Examples
from fedmime.data.unpack import unpack_lzma
from fedmime.errors import DataError
from fedmime.files import sha256_of

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def from_tff_hdf5(
    paths: Paths, sha256: str | None = None, limits: Limits = DEFAULT, columns: Sequence[str] | None = None
) -> Population:
    """The clients of TFF's HDF5 files: `/examples/<client id>/<field>`, clients and fields in sorted order.

    `paths` is one file or several shards of one data set; `columns` names the fields wanted, if not all.
    Each file's sha256 (given, or listed in a `SHA256SUMS` beside it) is checked before anything is parsed.
    """
    from fedmime.data.hdf5 import ClientFile

    files = [ClientFile(require(path, sha256), "examples", limits, columns) for path in _paths(paths)]
    owner: dict[str, ClientFile] = {}
    sizes: dict[str, int] = {}
    fields: dict[str, Field] = {}
    for file in files:
        for client in file.ids:
            if client in owner:
                raise DataError(f"client id {client!r} is in {str(owner[client].path)!r} and in {str(file.path)!r}")
            owner[client] = file
            sizes[client], found = file.fields(client)
            fields = fields or found
            same_fields(fields, found, f"{str(file.path)!r}: client {client!r}")
    if not owner:
        raise DataError(f"{str(files[0].path)!r}: group 'examples' holds no clients")
    ids = sorted(owner)
    return Population(
        files[0].path.stem,
        ids,
        [sizes[client] for client in ids],
        fields,
        lambda index: owner[ids[index]].read(ids[index], fields),
        identity=lambda: describe("tff-hdf5", columns, *(sha256_of(file.path) for file in files)),
    )


def from_tff_sqlite(
    path: str | os.PathLike[str], split: str = "train", sha256: str | None = None, limits: Limits = DEFAULT
) -> Population:
    """One split of a TFF SQLite file (`.sqlite`, or `.sqlite.lzma`, which is unpacked beside itself once).

    Clients are in sorted order, examples in the order of their rows.
    """
    file = require(Path(path), sha256)
    if file.suffix in (".lzma", ".xz"):
        file = _unpacked(file, limits)
    source = Examples(file, split, limits)
    return Population(
        f"{file.stem}_{split}",
        source.ids,
        source.sizes,
        source.fields,
        source.read,
        identity=lambda: describe("tff-sqlite", sha256_of(file), split),
    )


def _paths(paths: Paths) -> list[Path]:
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not several:
        raise DataError("no files given; at least one is needed")
    return [Path(path) for path in several]


def _unpacked(packed: Path, limits: Limits) -> Path:
    """The file beside its archive: unpacked now and its sha256 noted, or unpacked before and still the same."""
    file = packed.with_suffix("")
    if file.exists():
        return require(file)
    unpack_lzma(packed, file, limits)
    pin([file])
    return file
