"""Read `/group/<client>/<field>` out of an HDF5 file that nobody vouches for.

HDF5 can point outside its own file (external links, external and virtual storage), load filter plug-ins and claim any
size. Only hard links, storage inside the file, built-in filters, plain numbers and strings of a bounded size pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
from h5py import h5d, h5l, h5z  # pyright: ignore[reportAttributeAccessIssue]

from fedmime.data.limits import Limits
from fedmime.data.population import TEXT, Columns, Field
from fedmime.errors import DataError
from fedmime.files import sha256_of

_INSIDE = {h5d.COMPACT, h5d.CONTIGUOUS, h5d.CHUNKED}
_FILTERS = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32, h5z.FILTER_LZF}
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError)

T = TypeVar("T")


class ClientFile:
    """One open HDF5 file with a subgroup per client; nothing is read but what is asked for."""

    def __init__(self, path: Path, group: str, limits: Limits, columns: Sequence[str] | None = None) -> None:
        self.path, self.limits, self.columns = path, limits, columns
        self._file = guarded(path, lambda: h5py.File(path, "r"))
        self._root = self._group(self._file, group, f"expected {group!r}, with a group per client in it")
        self.ids: list[str] = sorted(guarded(path, lambda: list(self._root)))
        limits.check_clients(len(self.ids), f"{str(path)!r}")

    def fields(self, client: str) -> tuple[int, dict[str, Field]]:
        """How many examples a client has and what they are made of, from headers alone."""
        datasets = self._datasets(client)
        fields = {name: self._field(dataset, client, name) for name, dataset in datasets.items()}
        lengths = {name: dataset.shape[0] for name, dataset in datasets.items()}
        if len(set(lengths.values())) != 1:
            told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise DataError(f"{self._where(client)}: fields differ in length: {told}")
        self.limits.check_client(sum(claimed(dataset) for dataset in datasets.values()), self._where(client))
        return next(iter(lengths.values())), fields

    def read(self, client: str, fields: Mapping[str, Field]) -> Columns:
        """The columns of a client whose `fields` are known."""
        datasets = self._datasets(client)
        return {
            name: guarded(self.path, lambda d=datasets[name], f=field: self._read(d, f, client))
            for name, field in fields.items()
        }

    def _read(self, dataset: h5py.Dataset, field: Field, client: str) -> np.ndarray:
        if not field.ragged:
            return np.asarray(dataset[()], field.dtype)
        result = np.empty(dataset.shape[0], object)
        # A string can be as long as the file; a block of them must not be longer than a client may be.
        step = min(4096, max(16, self.limits.client_bytes // max(1, self.path.stat().st_size)))
        total = 0
        for start in range(0, len(result), step):
            block = np.asarray(dataset[start : start + step])
            items = [bytes(item) if isinstance(item, bytes) else str(item).encode() for item in block.tolist()]
            total += sum(map(len, items))
            self.limits.check_client(total, self._where(client))
            result[start : start + step] = items
        return result

    def _datasets(self, client: str) -> dict[str, h5py.Dataset]:
        group = self._group(self._root, client, "expected a group of fields for each client")
        names = sorted(self.columns or guarded(self.path, lambda: list(group)))
        if not names:
            raise DataError(f"{self._where(client)} has no fields")
        datasets = {name: self._member(group, name, self._where(client)) for name in names}
        for name, dataset in datasets.items():
            if not isinstance(dataset, h5py.Dataset):
                raise DataError(f"{self._where(client)}: field {name!r} is a group; expected an array")
        return datasets

    def _field(self, dataset: h5py.Dataset, client: str, name: str) -> Field:
        """What a dataset holds, once its storage is known to be harmless."""
        where = f"{self._where(client)}, field {name!r}"
        properties = dataset.id.get_create_plist()
        if properties.get_external_count() or properties.get_layout() not in _INSIDE:
            raise DataError(f"{where}: external storage refused: the values lie in another file")
        filters = {properties.get_filter(i)[0] for i in range(properties.get_nfilters())}
        if not filters <= _FILTERS:
            raise DataError(
                f"{where}: filter {min(filters - _FILTERS)} refused; accepted are gzip, lzf, shuffle, fletcher32"
            )
        if not dataset.shape:
            raise DataError(f"{where} is a single value; expected an array whose first axis is examples")
        dtype = dataset.dtype
        if h5py.check_string_dtype(dtype) is not None and len(dataset.shape) == 1:
            return TEXT
        if dtype.kind not in "biufc" or dtype.subdtype is not None:
            raise DataError(f"{where} has dtype {dtype}; accepted are numbers and strings")
        return Field(dtype.newbyteorder("="), dataset.shape[1:])

    def _group(self, parent: h5py.Group, name: str, expected: str) -> h5py.Group:
        group = self._member(parent, name, repr(str(self.path)), expected)
        if not isinstance(group, h5py.Group):
            raise DataError(f"{str(self.path)!r}: {name!r} is not a group; {expected}")
        return group

    def _member(self, parent: h5py.Group, name: str, where: str, expected: str = "") -> Any:
        """A child reached by a hard link; soft and external links are not followed."""
        links = parent.id.links
        if not guarded(self.path, lambda: links.exists(name.encode())):
            found = ", ".join(map(repr, list(parent)[:8])) or "nothing"
            raise DataError(f"{where}: no {name!r}; found {found}; {expected or f'expected {name!r}'}")
        if guarded(self.path, lambda: links.get_info(name.encode()).type) != h5l.TYPE_HARD:
            raise DataError(f"{where}: {name!r} is a link to elsewhere: external storage refused")
        return guarded(self.path, lambda: parent[name])

    def _where(self, client: str) -> str:
        return f"{str(self.path)!r}: client {client!r}"


def claimed(dataset: h5py.Dataset) -> int:
    """The bytes that reading a dataset would take: its values, or one of its chunks if that is larger."""
    chunk = math.prod(dataset.chunks) if dataset.chunks else 0
    return max(math.prod(dataset.shape), chunk) * dataset.dtype.itemsize


def guarded(path: Path, action: Callable[[], T]) -> T:
    """Do something with an HDF5 file; what the HDF5 library complains of becomes one line with the file's sha256."""
    try:
        return action()
    except DataError:
        raise
    except _DAMAGE as error:
        if isinstance(error, PermissionError | FileNotFoundError):
            raise
        told = " ".join(str(error).split())[:120]
        raise DataError(f"{str(path)!r} is not a sound HDF5 file (sha256 {sha256_of(path)}): {told}") from None
