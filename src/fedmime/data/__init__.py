"""Federated data: published files, generated populations, your own arrays, and a store for millions of clients."""

from __future__ import annotations

from fedmime.data import partition
from fedmime.data.arrays import from_arrays
from fedmime.data.digits import annotators, digits
from fedmime.data.emnist import emnist
from fedmime.data.fedjax import from_fedjax_sqlite
from fedmime.data.handwriting import handwriting
from fedmime.data.population import Field, Population
from fedmime.data.shakespeare import shakespeare
from fedmime.data.stackoverflow import stackoverflow
from fedmime.data.store import from_store
from fedmime.data.synthetic import synthetic
from fedmime.data.tff import from_tff_hdf5, from_tff_sqlite

__all__ = [
    "Field",
    "Population",
    "annotators",
    "digits",
    "emnist",
    "from_arrays",
    "from_fedjax_sqlite",
    "from_store",
    "from_tff_hdf5",
    "from_tff_sqlite",
    "handwriting",
    "partition",
    "shakespeare",
    "stackoverflow",
    "synthetic",
]
