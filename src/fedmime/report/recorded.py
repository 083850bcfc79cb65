"""Recorded runs, read from their directories: what was asked, what was measured, where it ran, how it ended."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmime.errors import DataError
from fedmime.files import read_object
from fedmime.report.style import method
from fedmime.runs.directory import IDENTITY
from fedmime.runs.history import METRICS, columns, read_rows
from fedmime.runs.history import rounds_to as rounds_to_target
from fedmime.runs.yaml_file import read_mapping

__all__ = ["Recorded", "load", "load_all", "rounds_to_target"]
COMPARISON = "compare.json"
_NONE: Mapping[str, Any] = {}


@dataclasses.dataclass(frozen=True)
class Recorded:
    """One run: its history as arrays with an entry a round, and the files beside it as plain values."""

    label: str
    history: Mapping[str, np.ndarray]
    seconds: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))  # at the end of each round
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    status: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    clients: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    command: str = ""
    path: Path | None = None

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The rounds after which a figure was measured, counted from 1, and its values."""
        values = self.history.get(name, np.empty(0))
        known = np.flatnonzero(np.isfinite(values))
        return self.history.get("round", np.empty(0))[known] + 1, values[known]

    def last(self, name: str) -> float | None:
        """The last measured value of a figure."""
        values = self.series(name)[1]
        return float(values[-1]) if len(values) else None


def load(path: str | os.PathLike[str]) -> list[Recorded]:
    """The run in a directory, or the runs in the directories in it, in the order in which they were started."""
    root = Path(path)
    if (root / METRICS).is_file():
        return [_run(root)]
    found = [_run(child) for child in sorted(root.iterdir()) if (child / METRICS).is_file()] if root.is_dir() else []
    if not found:
        what = f"neither it nor a directory in it holds a {METRICS}" if root.is_dir() else "there is no such directory"
        raise DataError(f"{str(root)!r} is no run: {what}; accepted is the directory of a run or of several")
    return _distinct(sorted(found, key=lambda run: str(run.environment.get("time", ""))))


def load_all(paths: Sequence[str | os.PathLike[str]]) -> list[Recorded]:
    """The runs of several directories, with labels that tell them apart; a directory named twice counts once."""
    unique = {Path(path).resolve(): path for path in paths}
    return _distinct([run for path in unique.values() for run in load(path)])


def comparison(directory: Path) -> Mapping[str, Any]:
    """What a comparison wrote down beside its runs: title, caption and the order of methods; empty if there is none."""
    return _mapping(directory / COMPARISON)


def _distinct(runs: list[Recorded]) -> list[Recorded]:
    """Labels that occur twice get the name of their directory, and a number if that does not help."""
    runs = _marked(runs, [run.path.name if run.path else "" for run in runs])
    return _marked(runs, [str(place) for place in range(1, len(runs) + 1)])


def _marked(runs: list[Recorded], marks: list[str]) -> list[Recorded]:
    count = Counter(run.label for run in runs)
    return [
        dataclasses.replace(run, label=f"{run.label} ({mark})") if count[run.label] > 1 else run
        for run, mark in zip(runs, marks, strict=True)
    ]


def _run(path: Path) -> Recorded:
    rows = [{name: value for name, value in row.items() if not isinstance(value, str)} for row in read_rows(path)]
    for name, value in ((name, value) for row in rows for name, value in row.items()):
        if value is not None and not isinstance(value, int | float):
            raise DataError(f"{str(path / METRICS)!r}: {name!r} must be a number or null in every round, got {value!r}")
    try:
        history = {name: np.asarray(column, float) for name, column in columns(rows).items()}
    except OverflowError:
        raise DataError(f"{str(path / METRICS)!r} is damaged: a number is too large") from None
    config = _config(path / "config.yaml")
    return Recorded(
        label=_label(config, path),
        history=history,
        seconds=_seconds(path / "timings.jsonl", history.get("round", np.empty(0))),
        config=config,
        identity=_mapping(path / IDENTITY),
        status=_mapping(path / "status.json"),
        environment=_mapping(path / "env.json"),
        data=_mapping(path / "data.json"),
        clients=_clients(path / "clients.json"),
        command=_text(path / "command.txt").strip(),
        path=path,
    )


def _label(config: Mapping[str, Any], path: Path) -> str:
    """What the configuration calls the run; else its method in the paper's spelling; else its directory's name."""
    if config.get("label") is not None:
        return str(config["label"])
    asked, base = config.get("algorithm"), config.get("base")
    if not isinstance(asked, str):  # a run of the library, not of the command line
        return path.resolve().name
    name = method(asked) or asked
    return name if base in (None, "") else f"{name} ({base})"


def _clients(file: Path) -> Mapping[str, Any]:
    """The last evaluation of every client: `ids` is the list of their names, every other list becomes an array."""
    found = _mapping(file)
    listed = {name for name, each in found.items() if isinstance(each, list) and name != "ids"}
    try:
        return {name: np.asarray(each, float) if name in listed else each for name, each in found.items()}
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{str(file)!r} is damaged: its lists must hold numbers and nulls only (ids aside)") from None


def _seconds(file: Path, rounds: np.ndarray) -> np.ndarray:
    """The time at the end of every round; NaN where the file does not say."""
    if not file.is_file():
        return np.full(len(rounds), np.nan)
    known = {row["round"]: finite(row.get("seconds")) for row in read_rows(file)}
    return np.asarray([known.get(int(number)) for number in rounds], float)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _config(file: Path) -> Mapping[str, Any]:
    """The recorded configuration; empty if the file is not there."""
    if not file.is_file():
        return _NONE
    try:
        return read_mapping(file)
    except ValueError as error:
        raise DataError(f"{str(file)!r} is damaged: {error}") from None


def _mapping(file: Path) -> Mapping[str, Any]:
    """A JSON mapping; empty if the file is not there, as in a run that has just begun."""
    if not file.is_file():
        return _NONE
    try:
        found = read_object(file)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DataError(f"{str(file)!r} is damaged: it must hold a JSON mapping")
    return found


def finite(value: Any) -> float | None:
    """A finite number that a file holds; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)
