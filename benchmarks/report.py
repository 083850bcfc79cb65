"""Results on disk and on screen: one JSON file, one Markdown file, rich tables. Reads results, never measures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

FORMAT = 1  # of the results; those of another format are not read
RESULTS, REPORT, CHART = "results.json", "report.md", "rounds.png"


class Table(NamedTuple):
    """A titled table of text; the first column is left-aligned, the others are figures."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def load(out: Path) -> dict[str, Any]:
    """What earlier calls measured, section by section; nothing where there is nothing this version can read."""
    file = out / RESULTS
    found = json.loads(file.read_text()) if file.is_file() else {}
    return found if found.get("format") == FORMAT else {"format": FORMAT}


def save(out: Path, results: dict[str, Any], tables: Sequence[Table]) -> None:
    """Write JSON and Markdown."""
    out.mkdir(parents=True, exist_ok=True)
    (out / RESULTS).write_text(json.dumps(results, indent=1) + "\n")
    (out / REPORT).write_text(markdown(tables, results.get("machine", {})))


def show(console: Console, tables: Sequence[Table]) -> None:
    """Print the tables."""
    for table in tables:
        shown = RichTable(title=escape(table.title), title_justify="left", caption=escape(table.note) or None)
        for i, name in enumerate(table.header):
            shown.add_column(escape(name), justify="left" if i == 0 else "right")
        for row in table.rows:
            shown.add_row(*(_coloured(cell) for cell in row))
        console.print(shown)


def markdown(tables: Sequence[Table], machine: dict[str, Any]) -> str:
    """The report as one Markdown text."""
    told = ", ".join(f"{name}: {value}" for name, value in machine.items())
    parts = ["# Benchmarks", told, f"![CPU seconds a round]({CHART})"]
    for table in tables:
        lines = [f"## {table.title}", ""]
        lines += [_line(table.header), "|".join(["", ":--", *["--:"] * (len(table.header) - 1), ""])]
        lines += [_line(row) for row in table.rows]
        parts.append("\n".join(lines + (["", table.note] if table.note else [])))
    return "\n\n".join(part for part in parts if part) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def _coloured(cell: str) -> str:
    colour = {"reached": "green", "missed": "red", "not": "yellow"}.get(cell.partition(" ")[0])
    return f"[{colour}]{cell}[/{colour}]" if colour else escape(cell)
