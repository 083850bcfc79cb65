"""EMNIST by writer: pixels inverted, so that ink is 1 and paper 0."""

from __future__ import annotations

import os

import numpy as np

from fedmime.data import catalog
from fedmime.data.limits import DEFAULT, Limits
from fedmime.data.population import Columns, Field, Population
from fedmime.data.store import from_store
from fedmime.data.views import mapped
from fedmime.errors import DataError

FIELDS = {"x": Field(np.dtype(np.float32), (28, 28, 1)), "y": Field(np.dtype(np.int32))}


def emnist(
    data_dir: str | os.PathLike[str] | None = None, only_digits: bool = False, limits: Limits = DEFAULT
) -> Population:
    """The published EMNIST files in `data_dir`: `x = 1 - pixels` of shape [n, 28, 28, 1], `y` the label.

    Labels 0-9 are digits, 10-35 capitals, 36-61 small letters. Test examples are by writer and pooled.
    """
    dataset = catalog.published("emnist-digits" if only_digits else "emnist")
    directory = catalog.data_directory(data_dir)
    if (directory / f"{dataset.name}.store").is_dir():
        return from_store(directory / f"{dataset.name}.store")
    test = prepare(catalog.load(dataset, "test", directory, ("label", "pixels"), limits), only_digits)
    found = prepare(catalog.load(dataset, "train", directory, ("label", "pixels"), limits), only_digits, test)
    return catalog.opened(found, "emnist", data_dir, only_digits, limits)


def prepare(raw: Population, only_digits: bool = False, test_clients: Population | None = None) -> Population:
    """The training columns of clients as published."""
    classes = 10 if only_digits else 62
    found = {name: raw.fields.get(name) for name in ("pixels", "label")}
    for name, field in found.items():
        kind, shape = ("f", (28, 28)) if name == "pixels" else ("iu", ())
        if field is None or field.dtype.kind not in kind or field.shape != shape:
            told = "floats in [0, 1] of shape [n, 28, 28]" if name == "pixels" else "integers of shape [n]"
            raise DataError(f"{raw.name}: field {name!r} is {field or 'missing'}; accepted are {told}")
    return mapped(
        raw,
        "emnist-digits" if only_digits else "emnist",
        FIELDS,
        lambda columns, where: _inverted(columns, where, classes),
        f"emnist classes={classes}",
        test_clients=test_clients,
    )


def _inverted(columns: Columns, where: str, classes: int) -> Columns:
    """One client's `x` and `y`. NaN passes: `verify` reports it, and training drops the client."""
    pixels, labels = columns["pixels"], columns["label"]
    if (pixels < 0).any() or (pixels > 1).any():
        raise DataError(f"{where}: pixels lie in [{pixels.min()}, {pixels.max()}]; accepted is [0, 1] (divide by 255?)")
    if (labels < 0).any() or (labels >= classes).any():
        bad = labels[(labels < 0) | (labels >= classes)][0]
        raise DataError(f"{where}: label {bad} is out of range; accepted are 0 to {classes - 1}")
    return {"x": (1.0 - pixels.astype(np.float32))[..., None], "y": labels.astype(np.int32)}
