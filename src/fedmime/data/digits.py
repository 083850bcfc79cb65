"""Small real populations that need no download: scikit-learn's digits, dealt out with label skew or relabelled."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from fedmime.data import partition
from fedmime.data.arrays import in_memory
from fedmime.data.population import Columns, Population
from fedmime.errors import ConfigError

CLASSES = 10


def digits(clients: int = 50, alpha: float = 0.5, seed: int = 0, labels_per_client: int | None = None) -> Population:
    """1,797 scanned digits of 8 x 8 pixels in [0, 1]: a fifth of each label is the test set, the rest the clients'.

    Labels are shared out by `partition.dirichlet(alpha)`; with `labels_per_client` by `partition.by_label` instead,
    so that every client holds so many labels and no other.
    """
    x, y, test = _split(seed)
    if labels_per_client is None:
        return partition.dirichlet(x, y, clients, alpha, seed, test=test, name="digits")
    return partition.by_label(x, y, clients, labels_per_client, seed, test=test, name="digits")


def annotators(seed: int = 0) -> Population:
    """The same digits, dealt i.i.d. to ten annotators who err each in their own way; the test set has the true labels.

    Annotator i takes an i for an i + 1 and an i + 5 for an i + 3, modulo ten. Gradients differ much between clients
    (large G) and Hessians little (small δ): the Hessian of a logistic model does not depend on the labels.
    """
    x, y, test = _split(seed)
    dealt = partition.iid(x, y, CLASSES, seed)
    columns = {f"annotator_{i}": _relabelled(dealt.client_at(i), i) for i in range(CLASSES)}
    return in_memory("annotators", columns, dealt.fields, test)


def _relabelled(columns: Columns, annotator: int) -> Columns:
    seen = np.arange(CLASSES, dtype=columns["y"].dtype)  # what the annotator says of each true label
    seen[annotator] = (annotator + 1) % CLASSES
    seen[(annotator + 5) % CLASSES] = (annotator + 3) % CLASSES
    return columns | {"y": seen[columns["y"]]}


def _split(seed: int) -> tuple[np.ndarray, np.ndarray, Columns]:
    """Training images and labels, and the test set."""
    table = _table()
    x = (table[:, :-1] / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    y = table[:, -1].astype(np.int32)
    train, held_out = partition.split(y, 0.2, seed)
    return x[train], y[train], {"x": x[held_out], "y": y[held_out]}


def _table() -> np.ndarray:
    """[1797, 65] the pixels of every digit and its label, from the file that scikit-learn ships.

    Importing scikit-learn would take seconds, and only this file of it is needed.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("digits needs scikit-learn: pip install scikit-learn")
    path = Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return np.loadtxt(file, delimiter=",")
