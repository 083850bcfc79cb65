"""Populations from data frames of pandas, which is not imported: a frame brings all that is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmime.data.padding import Pad
from fedmime.data.population import Population
from fedmime.data.tables import Choice, Table, population_of, rules
from fedmime.errors import ConfigError, DataError

_READER = "from_pandas"


def from_pandas(
    frame: Any,
    by: str,
    x: Choice | None = None,
    y: str | None = None,
    *,
    fields: Mapping[str, Choice] | None = None,
    test: Any = None,
    dtypes: Mapping[str, Any] | None = None,
    pad: Mapping[str, Pad] | None = None,
    classes: Sequence[str] | None = None,
    name: str = "pandas",
) -> Population:
    """A population from a pandas frame: one client per value of the column `by`.

    Args:
        x: the column of field `x`; several columns of numbers become its last axis.
        y: the column of field `y`.
        fields: further fields with their columns; without x, y and fields, every column is a field of its own name.
        test: a second frame. With the column `by` it gives test clients, without it a pooled test set.
        dtypes: the dtype of a field, where int32 for whole numbers and float32 for others will not do.
        pad: how sequences of differing lengths become rows of one length, by field.
        classes: the labels in column `y` in words; they become 0, 1, … in this order.
    """
    table = _table(frame, "frame")
    chosen = rules(_READER, table, by, x, y, fields, dtypes, pad, classes)
    return population_of(table, chosen, None if test is None else _table(test, "test"), name)


def _table(frame: Any, argument: str) -> Table:
    if not all(hasattr(frame, name) for name in ("columns", "iloc", "itertuples")):
        raise ConfigError(f"{_READER}: {argument} must be a pandas.DataFrame, got {type(frame).__name__}")
    columns = list(frame.columns)
    if odd := [column for column in columns if not isinstance(column, str)]:
        raise DataError(f"{_READER}: {argument} has a column {odd[0]!r}; columns must be named by text")
    if twice := [column for column in columns if columns.count(column) > 1]:
        raise DataError(f"{_READER}: {argument} has column {twice[0]!r} twice")

    def cells(column: str) -> Any:
        series = frame[column]
        missing = np.flatnonzero(series.isna().to_numpy())
        if len(missing):
            row = int(missing[0])
            raise DataError(f"{where(column)(row)} is missing ({series.iloc[row]!r}); every row needs a value")
        return series.to_numpy() if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biuf" else list(series)

    table = Table(_READER if argument == "frame" else f"{_READER}: test", columns, len(frame), cells)
    where = table.place
    return table
