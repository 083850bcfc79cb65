"""Anything that holds clients, by name or by path: what `data verify`, `convert` and `stats` work on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fedmime.data import catalog
from fedmime.data.checksums import require
from fedmime.data.digits import digits
from fedmime.data.emnist import emnist
from fedmime.data.fedjax import from_fedjax_sqlite
from fedmime.data.population import Population
from fedmime.data.shakespeare import shakespeare
from fedmime.data.sqlite import MAGIC, Database
from fedmime.data.stackoverflow import stackoverflow, store_name
from fedmime.data.store import from_store
from fedmime.data.synthetic import synthetic
from fedmime.data.tff import from_tff_hdf5, from_tff_sqlite
from fedmime.data.writer import SCHEMA
from fedmime.errors import DataError
from fedmime.files import sha256_of

EMBEDDED = {
    "handwriting": "generated handwriting by writer, 62 classes: 3,400 clients",
    "digits": "scikit-learn's scanned digits with label skew: 50 clients, 1,438 examples",
    "synthetic": "Synthetic(1, 1), linear models that differ by client: 100 clients",
}
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


@dataclasses.dataclass(frozen=True)
class Source:
    """A population by description, so that another process can open it too.

    `what` is a data set of the catalogue, an embedded one, or a path: a store, or a file in a published format
    (`split` chooses within TFF's SQLite files).
    """

    what: str
    data_dir: str | None = None
    split: str = "train"
    vocabulary: int = 10_000
    length: int | None = None
    max_sentences: int | None = 1000
    verify: bool = False

    def open(self) -> Population:
        """The population that is meant."""
        if self.what in catalog.DATASETS:
            return self._published()
        if self.what in EMBEDDED:
            return _embedded(self.what)
        if not Path(self.what).exists():
            known = ", ".join([*EMBEDDED, *catalog.DATASETS])
            raise DataError(f"{self.what!r} is neither a file nor a data set; accepted are a path or {known}")
        return open_path(Path(self.what), self.split, self.verify)

    def store(self) -> Path:
        """Where its store goes unless said otherwise: beside the published files, where it is found again."""
        directory = catalog.data_directory(self.data_dir)
        if self.what == "shakespeare":
            return directory / f"shakespeare-{self.length or 80}.store"
        if self.what == "stackoverflow":
            return directory / store_name(self.vocabulary, self.length or 20, self.max_sentences, None, 0)
        return directory / f"{Path(self.what).stem}.store"

    def _published(self) -> Population:
        if self.what == "shakespeare":
            return shakespeare(self.data_dir, self.length or 80)
        if self.what == "stackoverflow":
            return stackoverflow(self.data_dir, self.vocabulary, self.length or 20, self.max_sentences)
        return emnist(self.data_dir, only_digits=self.what == "emnist-digits")


def open_path(path: Path, split: str = "train", verify: bool = False) -> Population:
    """A store, or a file in one of the published formats, told apart by what it holds."""
    if path.is_dir() or path.name == SCHEMA:
        return from_store(path if path.is_dir() else path.parent, verify)
    if path.suffix in (".lzma", ".xz"):
        return from_tff_sqlite(path, split)
    with require(path).open("rb") as file:
        start = file.read(16)
    if start == MAGIC:
        names = [row[0] for row in Database(path).rows("SELECT name FROM sqlite_master")]
        return from_fedjax_sqlite(path) if "federated_data" in names else from_tff_sqlite(path, split)
    if start.startswith(_HDF5_MAGIC) or path.suffix in (".h5", ".hdf5"):
        return from_tff_hdf5(path)
    raise DataError(
        f"{str(path)!r} (sha256 {sha256_of(path)}) is in no known format; accepted are stores, TFF's HDF5 and SQLite "
        "files and FedJAX's SQLite files"
    )


def _embedded(name: str) -> Population:
    if name == "handwriting":
        from fedmime.data import handwriting

        return handwriting()
    return digits() if name == "digits" else synthetic()
