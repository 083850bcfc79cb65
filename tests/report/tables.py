"""The text of a page's tables, and what a headline must say, worked out from metrics.jsonl alone."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path


class _Tables(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[list[str]]] = {}
        self._name, self._row, self._depth = "", [""], 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._name = dict(attrs).get("id") or ""
            self.found[self._name] = []
        if tag == "tr":
            self._row = []
        if tag in ("td", "th"):
            self._row.append("")
            self._depth += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._depth -= 1
        if tag == "tr":
            self.found[self._name].append([cell.strip() for cell in self._row])

    def handle_data(self, data: str) -> None:
        if self._depth:
            self._row[-1] += data


def table(page: str, name: str) -> list[list[str]]:
    """The rows of a table below its heading."""
    parser = _Tables()
    parser.feed(page)
    return parser.found[name][1:]


def expected_headline(run: Path, target: float) -> list[str]:
    """A run's row."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seconds = [json.loads(line)["seconds"] for line in (run / "timings.jsonl").read_text().splitlines()]
    tested = [row for row in rows if row.get("test_accuracy") is not None]
    reached = [row for row in tested if row["test_accuracy"] >= target]
    return [
        run.name,
        f"{100 * tested[-1]['test_accuracy']:.1f} %",
        f"{100 * max(row['test_accuracy'] for row in tested):.1f} %",
        str(reached[0]["round"] + 1) if reached else f"not in {len(rows)}",
        f"{rows[-1]['bytes_total'] / 1e6:,.0f}",
        f"{reached[0]['bytes_total'] / 1e6:,.0f}" if reached else "–",
        f"{seconds[-1]:.1f} s",
        f"{100 * tested[-1]['client_accuracy_worst_decile']:.1f} %",
    ]
