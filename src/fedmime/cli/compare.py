"""`fedmime compare`: several methods, the same seeds and cohorts, one table and one report."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmime.cli.options import Asked, from_file, require_local, setting_of
from fedmime.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Compare(Asked):
    """Run several methods on one task. Methods that are done are not run again."""

    methods: tuple[str, ...] = ("fedavg", "mime_lite", "mime")
    """Each as [LABEL=]ALGORITHM[:BASE][@ETA], such as fedavg:momentum@0.1; the rest is shared."""
    title: str | None = None
    """Of the report."""


def defaults(words: Sequence[str]) -> Compare:
    """What `compare` does unless told otherwise."""
    return from_file(Compare, words)


def run(args: Compare) -> int:
    """Run the methods one after another; gives the exit code."""
    from fedmime.cli import session
    from fedmime.cli.train import carry_out, summary
    from fedmime.experiments import compare, train

    require_local(args.backend)
    session.start()
    out = args.out or Path("runs") / f"compare-{args.task}"
    chosen = []
    for method in compare.methods(args.methods, setting_of(args)):
        prepared = train.prepare(method.setting, args.data_dir)
        chosen.append((method.label or prepared.label, prepared))
    labels = [label for label, _ in chosen]
    if twice := [label for i, label in enumerate(labels) if label in labels[:i]]:
        raise ConfigError(f"methods: two are called {twice[0]!r}; give each a label, such as slow=mime@0.01")
    if args.dry_run:
        from fedmime.cli.plan import show

        return max(show(prepared, out / label, args) for label, prepared in chosen)
    rows = []
    for label, prepared in chosen:
        result = carry_out(prepared, out / label, args, name=label)
        rows.append(summary(prepared, result, out / label) | {"method": label, "seconds": _seconds(out / label)})
    page = _report(out, args)
    if args.json:
        sys.stdout.write(json.dumps({"methods": rows, "report": str(page)}) + "\n")
    else:
        _table(rows, args, page)
    return 0


def _seconds(run: Path) -> float:
    return json.loads((run / "status.json").read_text(encoding="utf-8"))["seconds"]


def _report(out: Path, args: Compare) -> Path:
    from fedmime.report import html, recorded

    title = args.title or f"{args.task}: {len(args.methods)} methods"
    return html.write(out / "report.html", title, recorded.load(out))


def _table(rows: list[dict[str, Any]], args: Compare, page: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedmime.cli.progress import clock, size

    target = rows[0]["target"]
    reached = "rounds to target" if target is None else f"rounds to {target:.0%}"
    table = Table("method", "accuracy", "best", reached, "sent", "time", title=args.title or args.task)
    for row in rows:
        rounds = f"> {row['rounds']}" if row["rounds_to_target"] is None else str(row["rounds_to_target"])
        accuracy, best = (("–" if row[name] is None else f"{row[name]:.2%}") for name in ("accuracy", "best_accuracy"))
        table.add_row(row["method"], accuracy, best, rounds, size(row["bytes"]), clock(row["seconds"]))
    console = Console()
    console.print(table)
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
