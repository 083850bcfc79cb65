"""The history of a run as JSON lines, one object per round, and its conversion to arrays.

A figure that a round did not measure, or that is not finite, is null in the file and NaN in the arrays.
"""

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
    """A row as one line of strict JSON, newline included; numbers that are not finite become null."""
    return json.dumps({name: clean(value) for name, value in row.items()}, allow_nan=False) + "\n"


def clean(value: Any) -> Any:
    """The value itself, or None for a float that is not finite, which JSON cannot represent."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the rows of a history.

    A last line without a newline was cut short when the process was killed, and is ignored.

    Args:
        path: a `metrics.jsonl`, or the run directory that contains one.

    Raises:
        DataError: there is no such file, or a line is not a JSON object with a round.
    """
    file = Path(path) / METRICS if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise DataError(f"{str(path)!r} holds no {METRICS}; accepted is the directory of a run")
    rows = []
    lines = file.read_bytes().split(b"\n")
    for number, text in enumerate(lines[:-1], start=1):  # the text after the last newline is an unfinished line
        try:
            row = json.loads(text)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("round"), int):
            raise DataError(f"{str(file)!r}: line {number} is no JSON object with a round")
        rows.append(row)
    return rows


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The history as one array per figure [rounds], NaN where a round did not measure it."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: _column([row.get(name) for row in rows]) for name in names}


def _column(values: list[Any]) -> np.ndarray:
    """One figure as an array; text, such as the reason why a run ended, gives an array of objects."""
    if any(isinstance(value, str) for value in values):
        return np.asarray(values, object)
    if any(value is None for value in values):
        return np.asarray([np.nan if value is None else value for value in values], float)
    return np.asarray(values)


def score(measured: Mapping[str, Any]) -> float | None:
    """How good a model is, by what was measured on the test set: more is better; None if nothing finite was.

    That is its accuracy, or for a problem that reports none, the loss with its sign changed.
    """
    accuracy, loss = measured.get("test_accuracy"), measured.get("test_loss")
    found = accuracy if "test_accuracy" in measured else None if loss is None else -loss
    return found if found is not None and math.isfinite(found) else None


def rounds_to(history: Mapping[str, np.ndarray], target: float, metric: str = "test_accuracy") -> int | None:
    """The number of rounds after which a metric first reached `target`; None if it never did.

    Args:
        history: figures by name, as returned by `columns`.
        target: a lower bound, as for an accuracy.
        metric: the figure that is compared.
    """
    reached = np.flatnonzero(history.get(metric, np.empty(0)) >= target)
    return int(history["round"][reached[0]]) + 1 if len(reached) else None
