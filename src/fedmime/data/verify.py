"""Look at every client before training on any: what is wrong, in one line each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedmime.data.checksums import pinned
from fedmime.data.population import Columns, Population
from fedmime.data.sources import Source
from fedmime.data.sqlite import MAGIC, Database
from fedmime.errors import ConfigError, DataError
from fedmime.files import sha256_of
from fedmime.validation import not_finite, unscaled

MOST = 20  # findings kept; the rest is counted
_LABELS = ("y", "label", "coarse_label")
_LARGE = 100  # times the median

Progress = Callable[[int, int], None]


@dataclasses.dataclass
class Report:
    """What was found: errors forbid training, warnings deserve a look, notes are for the record."""

    name: str
    clients: int = 0
    examples: int = 0
    empty: int = 0
    identity: str = ""
    errors: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    unlisted: int = 0  # errors beyond the first ones

    @property
    def ok(self) -> bool:
        """Whether there is nothing against training on it."""
        return not self.errors

    def error(self, message: str) -> None:
        """Add an error, or only count it if there are many."""
        if len(self.errors) < MOST:
            self.errors.append(message)
        else:
            self.unlisted += 1


def verify(source: Source, classes: int | None = None, progress: Progress | None = None) -> Report:
    """Open a source with its checksums and read every client of it, test clients included."""
    if classes is not None and classes < 1:
        raise ConfigError(f"verify: classes must be a positive integer, got {classes!r}")
    path = Path(source.what)
    note = _check_file(path) if path.is_file() else ""
    population = dataclasses.replace(source, verify=True).open()
    report = examine(population, classes, progress)
    if note:
        report.notes.append(note)
    return report


def examine(population: Population, classes: int | None = None, progress: Progress | None = None) -> Report:
    """Read every client of a population and of its test clients."""
    report = Report(population.name, identity=population.identity())
    parts = [("", population)]
    if population.test_clients is not None:
        parts.append(("test ", population.test_clients))
    total, done = sum(len(part) for _, part in parts), 0
    scaled: set[str] = set()
    for prefix, part in parts:
        for index in range(len(part)):
            where = f"{prefix}client {part.ids[index]!r}"
            try:
                _client(part, index, where, classes, report, scaled)
            except DataError as error:
                report.error(str(error))
            done += 1
            if progress:
                progress(done, total)
    report.clients, report.examples = len(population), int(population.sizes.sum())
    report.empty = int((population.sizes == 0).sum())
    _sizes(population, report)
    return report


def _client(part: Population, index: int, where: str, classes: int | None, report: Report, scaled: set[str]) -> None:
    columns = part.client_at(index)
    size = int(part.sizes[index])
    for name, values in columns.items():
        if len(values) != size:
            report.error(f"{where}, field {name!r} has {len(values)} entries; expected {size}")
        if name not in scaled and (found := unscaled(name, values)):
            scaled.add(name)
            report.warnings.append(f"{where}, {found}")
    for found in not_finite(columns):
        report.error(f"{where}, {found}")
    _labels(columns, where, classes, report)


def _labels(columns: Columns, where: str, classes: int | None, report: Report) -> None:
    for name in _LABELS:
        values = columns.get(name)
        if values is None or values.dtype.kind not in "iu" or not values.size:
            continue
        if values.min() < 0:
            report.error(f"{where}, field {name!r} holds the label {values.min()}; labels are not negative")
        if classes is not None and values.max() >= classes:
            report.error(f"{where}, field {name!r} holds the label {values.max()}; accepted are 0 to {classes - 1}")


def _sizes(population: Population, report: Report) -> None:
    if report.empty:
        report.notes.append(f"{report.empty} clients have no examples and will be skipped")
    present = population.sizes[population.sizes > 0]
    if not len(present):
        report.error(f"{population.name}: no client has an example")
        return
    large = int((present > _LARGE * np.median(present)).sum())
    if large:
        told = f"the largest has {present.max():,}, the median {int(np.median(present)):,}"
        report.warnings.append(f"{large} clients have over {_LARGE} times the usual examples ({told}); consider a cap")


def _check_file(path: Path) -> str:
    """SQLite's own check of a whole file; for any file, whether its sha256 is vouched for."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            problems = Database(path).sound()
            if problems:
                raise DataError(f"{str(path)!r} is not a sound SQLite file: {problems[0]}")
    if pinned(path) is None:
        return f"sha256 {sha256_of(path)} is not pinned; list it in SHA256SUMS beside the file to have it checked"
    return ""
