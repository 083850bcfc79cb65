"""Populations from Hugging Face's `datasets`, which is not imported: a data set brings all that is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedmime.data.padding import Pad
from fedmime.data.population import Population
from fedmime.data.tables import Choice, Table, population_of, rules
from fedmime.errors import ConfigError, DataError

_READER = "from_huggingface"


def from_huggingface(
    dataset: Any,
    by: str,
    x: Choice | None = None,
    y: str | None = None,
    *,
    fields: Mapping[str, Choice] | None = None,
    split: str = "train",
    test: Any = None,
    dtypes: Mapping[str, Any] | None = None,
    pad: Mapping[str, Pad] | None = None,
    classes: Sequence[str] | None = None,
    name: str = "huggingface",
) -> Population:
    """A population from a `datasets.Dataset` or `DatasetDict`: one client per value of the column `by`.

    Nothing is downloaded. Images become float32 [height, width, channels] in [0, 1], class labels their numbers. A
    format or transform that was set on the data set is not applied; what `map` computed is read.

    Args:
        x: the column of field `x`; several columns of numbers become its last axis.
        y: the column of field `y`.
        fields: further fields with their columns; without x, y and fields, every column is a field of its own name.
        split: which data set of a `DatasetDict` is trained on.
        test: a second `Dataset`, or the name of a split. With the column `by` it gives test clients, without it a
            pooled test set.
        dtypes: the dtype of a field, where int32 for whole numbers and float32 for others will not do.
        pad: how sequences of differing lengths become rows of one length, by field.
        classes: the labels in column `y` in words, for columns of text; they become 0, 1, … in this order.
    """
    splits = dataset if isinstance(dataset, Mapping) else {}
    table = _table(dataset if splits is not dataset else _chosen(splits, split, "split"), "dataset")
    held_out = None
    if test is not None:
        held_out = _table(_chosen(splits, test, "test") if isinstance(test, str) else test, "test")
    return population_of(table, rules(_READER, table, by, x, y, fields, dtypes, pad, classes), held_out, name)


def _chosen(splits: Mapping[str, Any], split: str, argument: str) -> Any:
    if split not in splits:
        known = ", ".join(map(repr, splits)) or "those of a DatasetDict"
        raise ConfigError(f"{_READER}: {argument}={split!r} is no split; accepted are {known}")
    return splits[split]


def _table(dataset: Any, argument: str) -> Table:
    if not all(hasattr(dataset, name) for name in ("column_names", "with_format", "__len__", "__getitem__")):
        told = f"{argument} must be a datasets.Dataset or DatasetDict, loaded without streaming=True"
        raise ConfigError(f"{_READER}: {told}, got {type(dataset).__name__}")
    stored = dataset.with_format(None)

    def cells(column: str) -> Sequence[Any]:
        try:
            return list(stored[column])
        except (ValueError, OSError, ImportError) as error:  # an image that cannot be decoded, or a decoder missing
            raise DataError(f"{_READER}: column {column!r} cannot be read: {error}".splitlines()[0]) from None

    where = _READER if argument == "dataset" else f"{_READER}: test"
    return Table(where, list(dataset.column_names), len(dataset), cells)
