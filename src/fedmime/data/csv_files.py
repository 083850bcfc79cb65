"""Populations from CSV files with a header, read by the standard library."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmime.data.padding import Pad
from fedmime.data.population import Population
from fedmime.data.tables import Choice, Rules, Table, population_of, rules
from fedmime.errors import DataError

_READER = "from_csv"


def from_csv(
    path: str | os.PathLike[str],
    by: str,
    x: Choice | None = None,
    y: str | None = None,
    *,
    fields: Mapping[str, Choice] | None = None,
    test: str | os.PathLike[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    pad: Mapping[str, Pad] | None = None,
    classes: Sequence[str] | None = None,
    delimiter: str = ",",
    name: str | None = None,
) -> Population:
    """A population from a CSV file in UTF-8 whose first line names its columns: one client per value of column `by`.

    The first cell of a column decides whether it holds numbers or text; `dtypes={field: str}` makes it text. Numbers
    are whole where all of them are written so. In fields with a `pad` rule cells are sequences: numbers with spaces
    between them. The other arguments are those of `from_pandas`; `test` is the path of a second file.
    """
    table = _table(Path(path), delimiter)
    chosen = rules(_READER, table, by, x, y, fields, dtypes, pad, classes)
    held_out = None if test is None else _parsed(_table(Path(test), delimiter), chosen)
    return population_of(_parsed(table, chosen), chosen, held_out, name or Path(path).stem)


def _table(path: Path, delimiter: str) -> Table:
    """The cells of a file as text."""
    where = f"{_READER} {str(path)!r}"
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(reader, [])
            rows, lines = [], []
            for row in reader:
                if not row:  # an empty line
                    continue
                if len(row) != len(header):
                    told = f"line {reader.line_num} has {len(row)} cells; the header names {len(header)} columns"
                    raise DataError(f"{where}: {told}")
                rows.append(row)
                lines.append(reader.line_num)
    except OSError as error:
        raise DataError(f"{where} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{where} is no CSV file in UTF-8: {error}") from None
    if not header:
        raise DataError(f"{where} is empty; its first line must name the columns")
    if twice := [column for column in header if header.count(column) > 1]:
        raise DataError(f"{where} has column {twice[0]!r} twice")
    columns = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(header, ())
    return Table(where, header, len(rows), columns.__getitem__, lambda row: f"line {lines[row]}")


def _parsed(table: Table, rule: Rules) -> Table:
    """The same table with numbers for the text that writes them."""
    as_text = {rule.by} | ({rule.fields["y"]} if rule.classes is not None else set())
    as_text |= {column for field, column in rule.fields.items() if rule.dtypes.get(field) is str}
    sequences = {column for field, column in rule.fields.items() if field in rule.pad}

    def cells(column: str) -> Any:
        found, place = table.cells(column), table.place(column)
        for row, cell in enumerate(found):
            if not cell.strip() and column not in sequences:
                raise DataError(f"{place(row)} is missing ({cell!r}); every row needs a value")
        if column in as_text:
            return found
        if column in sequences:
            return [_numbers(cell.split(), lambda _, row=row: place(row)) for row, cell in enumerate(found)]
        return _numbers(found, place) if found and _number(found[0]) is not None else found

    return table._replace(cells=cells)


def _numbers(cells: Sequence[str], place: Callable[[int], str]) -> list[int | float]:
    values = []
    for row, cell in enumerate(cells):
        value = _number(cell)
        if value is None:
            raise DataError(f"{place(row)} holds {cell!r:.40}; the column holds numbers (dtypes={{field: str}}: text)")
        values.append(value)
    return values


def _number(cell: str) -> int | float | None:
    """The number that a cell writes, or None."""
    for kind in (int, float):
        try:
            return kind(cell.replace("_", "?"))  # Python accepts 1_000; files mean no number by it
        except ValueError:
            continue
    return None
