"""The history of a run as JSON lines: one a round, null where a round did not measure a figure."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmime.errors import DataError

METRICS = "metrics.jsonl"


def line(row: Mapping[str, Any]) -> str:
    """A row as strict JSON: what is not finite becomes null."""
    return json.dumps({name: clean(value) for name, value in row.items()}, allow_nan=False) + "\n"


def clean(value: Any) -> Any:
    """None for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl`, or of the run directory that holds one; a last line cut short is left out."""
    file = Path(path) / METRICS if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise DataError(f"{str(path)!r} holds no {METRICS}; accepted is the directory of a run")
    rows = []
    lines = file.read_bytes().split(b"\n")
    for number, text in enumerate(lines[:-1], start=1):  # what follows the last newline was never finished
        try:
            row = json.loads(text)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("round"), int):
            raise DataError(f"{str(file)!r}: line {number} is no JSON object with a round")
        rows.append(row)
    return rows


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """One array for every figure, an entry a round; NaN where it was not measured."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: _column([row.get(name) for row in rows]) for name in names}


def _column(values: list[Any]) -> np.ndarray:
    if any(isinstance(value, str) for value in values):  # why a run ended
        return np.asarray(values, object)
    if any(value is None for value in values):
        return np.asarray([np.nan if value is None else value for value in values], float)
    return np.asarray(values)


def rounds_to(history: Mapping[str, np.ndarray], target: float, metric: str = "test_accuracy") -> int | None:
    """After how many rounds a metric first reached a value; None if it never did."""
    reached = np.flatnonzero(history.get(metric, np.empty(0)) >= target)
    return int(history["round"][reached[0]]) + 1 if len(reached) else None
