"""The published data sets: which files hold which split, in each of the three formats."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from fedmime.data.fedjax import from_fedjax_sqlite
from fedmime.data.limits import DEFAULT, Limits
from fedmime.data.population import Population
from fedmime.data.tff import from_tff_hdf5, from_tff_sqlite
from fedmime.errors import ConfigError, DataError
from fedmime.files import home_cache
from fedmime.origin import Origin

ENVIRONMENT = "FEDMIME_DATA_DIR"
TFF_URL = "https://storage.googleapis.com/tff-datasets-public/"


@dataclasses.dataclass(frozen=True)
class Archive:
    """A file to download and what to take out of it."""

    name: str
    sha256: str
    members: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Published:
    """One data set: for each split, its HDF5 file, its split in TFF's SQLite file, and its FedJAX file."""

    name: str
    about: str
    splits: dict[str, tuple[str, str, str]]
    database: str  # TFF's SQLite file
    archives: tuple[Archive, ...] = ()
    extra: tuple[str, ...] = ()  # other files that it needs

    def candidates(self, split: str) -> list[str]:
        """The file names that may hold a split, in the order in which they are looked for."""
        hdf5, _, fedjax = self.splits[split]
        return [hdf5, f"{self.database}", f"{self.database}.lzma", fedjax]


_HDF5_WORDS = Archive(
    "stackoverflow.word_count.tar.bz2",
    "1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
    ("stackoverflow.word_count",),
)

DATASETS = {
    dataset.name: dataset
    for dataset in (
        Published(
            "emnist",
            "handwritten characters by writer, 62 classes: 3,400 clients, 671,585 examples",
            {
                "train": ("fed_emnist_train.h5", "all_train", "federated_emnist_train.sqlite"),
                "test": ("fed_emnist_test.h5", "all_test", "federated_emnist_test.sqlite"),
            },
            "emnist_all.sqlite",
            (
                Archive(
                    "fed_emnist.tar.bz2",
                    "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
                    ("fed_emnist_train.h5", "fed_emnist_test.h5"),
                ),
            ),
        ),
        Published(
            "emnist-digits",
            "handwritten digits by writer, 10 classes: 3,383 clients, 341,873 examples",
            {
                "train": (
                    "fed_emnist_digitsonly_train.h5",
                    "digits_only_train",
                    "federated_emnist_digitsonly_train.sqlite",
                ),
                "test": (
                    "fed_emnist_digitsonly_test.h5",
                    "digits_only_test",
                    "federated_emnist_digitsonly_test.sqlite",
                ),
            },
            "emnist_all.sqlite",
            (
                Archive(
                    "fed_emnist_digitsonly.tar.bz2",
                    "55333deb8546765427c385710ca5e7301e16f4ed8b60c1dc5ae224b42bd5b14b",
                    ("fed_emnist_digitsonly_train.h5", "fed_emnist_digitsonly_test.h5"),
                ),
            ),
        ),
        Published(
            "shakespeare",
            "speeches by role, next character: 715 clients, 16,068 examples",
            {
                "train": ("shakespeare_train.h5", "train", "shakespeare_train.sqlite"),
                "test": ("shakespeare_test.h5", "test", "shakespeare_test.sqlite"),
            },
            "shakespeare.sqlite",
            (
                Archive(
                    "shakespeare.tar.bz2",
                    "0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707",
                    ("shakespeare_train.h5", "shakespeare_test.h5"),
                ),
            ),
        ),
        Published(
            "stackoverflow",
            "questions and answers by user, next word: 342,477 clients, 135,818,730 examples",
            {
                "train": ("stackoverflow_train.h5", "train", "stackoverflow_train.sqlite"),
                "held_out": ("stackoverflow_held_out.h5", "heldout", "stackoverflow_held_out.sqlite"),
                "test": ("stackoverflow_test.h5", "test", "stackoverflow_test.sqlite"),
            },
            "stackoverflow.sqlite",
            (
                Archive(
                    "stackoverflow.tar.bz2",
                    "99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2",
                    ("stackoverflow_train.h5", "stackoverflow_held_out.h5", "stackoverflow_test.h5"),
                ),
                _HDF5_WORDS,
            ),
            ("stackoverflow.word_count",),
        ),
    )
}


def data_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """Where published files are looked for: as given, `$FEDMIME_DATA_DIR`, or the user's cache."""
    if given is not None:
        return Path(given)
    if os.environ.get(ENVIRONMENT):
        return Path(os.environ[ENVIRONMENT])
    return home_cache()


def opened(population: Population, function: str, data_dir: str | os.PathLike[str] | None, *rest: object) -> Population:
    """A published data set that remembers the call of `fedmime.data` that opened it, so that workers can repeat it.

    Without a directory of its own, every machine looks where it keeps published files.
    """
    directory = None if data_dir is None else str(Path(data_dir).absolute())
    return population.made_by(Origin(f"fedmime.data:{function}", (directory, *rest)))


def published(name: str) -> Published:
    """A data set by name."""
    if name not in DATASETS:
        raise ConfigError(f"unknown data set {name!r}; accepted are {', '.join(DATASETS)}")
    return DATASETS[name]


def find(dataset: Published, split: str, directory: Path) -> Path:
    """The file that holds a split, or one line saying what was looked for and how to get it."""
    if split not in dataset.splits:
        raise ConfigError(f"{dataset.name}: unknown split {split!r}; accepted are {', '.join(dataset.splits)}")
    for name in dataset.candidates(split):
        if (directory / name).is_file():
            return directory / name
    raise DataError(
        f"{dataset.name}: no {split} file in {str(directory)!r}; looked for {', '.join(dataset.candidates(split))}; "
        f"run `fedmime data fetch {dataset.name}` or pass data_dir"
    )


def load(
    dataset: Published, split: str, directory: Path, columns: Sequence[str] | None = None, limits: Limits = DEFAULT
) -> Population:
    """One split as published, in whichever format it is there; `columns` names the fields that will be used."""
    path = find(dataset, split, directory)
    hdf5, sql_split, fedjax = dataset.splits[split]
    if path.name == hdf5:
        return from_tff_hdf5(path, limits=limits, columns=columns)
    if path.name == fedjax:
        return from_fedjax_sqlite(path, limits=limits)
    return from_tff_sqlite(path, sql_split, limits=limits)
