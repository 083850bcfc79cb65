"""Federated data: published files, generated populations, your own arrays, and a store for millions of clients."""

from __future__ import annotations

from fedmime.data import partition
from fedmime.data.arrays import from_arrays
from fedmime.data.csv_files import from_csv
from fedmime.data.digits import annotators, digits
from fedmime.data.emnist import emnist
from fedmime.data.fedjax import from_fedjax_sqlite
from fedmime.data.handwriting import handwriting
from fedmime.data.huggingface import from_huggingface
from fedmime.data.leaf import from_leaf
from fedmime.data.padding import Pad
from fedmime.data.pandas_frames import from_pandas
from fedmime.data.plots import plot_labels
from fedmime.data.population import Field, Population
from fedmime.data.shakespeare import shakespeare
from fedmime.data.stackoverflow import stackoverflow
from fedmime.data.store import from_store
from fedmime.data.synthetic import synthetic
from fedmime.data.tff import from_tff_hdf5, from_tff_sqlite
from fedmime.data.torch_datasets import from_torch

__all__ = [
    "Field",
    "Pad",
    "Population",
    "annotators",
    "digits",
    "emnist",
    "from_arrays",
    "from_csv",
    "from_fedjax_sqlite",
    "from_huggingface",
    "from_leaf",
    "from_pandas",
    "from_store",
    "from_tff_hdf5",
    "from_tff_sqlite",
    "from_torch",
    "handwriting",
    "partition",
    "plot_labels",
    "shakespeare",
    "stackoverflow",
    "synthetic",
]
