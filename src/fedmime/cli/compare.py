"""`fedmime compare`: several methods, the same seeds and cohorts, one table and one report."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmime.cli.naming import directory, task_name
from fedmime.cli.options import Tracked, from_file, open_backend, require_backend, setting_of
from fedmime.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from fedmime.experiments.train import Prepared
    from fedmime.report.panel import Panel


@dataclasses.dataclass(frozen=True)
class Compare(Tracked):
    """Run several methods on one task. Methods that are done are not run again."""

    methods: tuple[str, ...] = ("fedavg", "mime_lite", "mime")
    """Each as [LABEL=]ALGORITHM[:BASE][@ETA[,ETA_SERVER]], such as fedavg:momentum@0.1,10; the rest is shared.
    Your own algorithm or base is written MODULE:NAME or FILE.py:NAME."""
    seeds: int = 1
    """Repeat every method with so many seeds, from --seed upwards, and tell means with their intervals."""
    rates: tuple[float, ...] = ()
    """Instead of the methods' own rates try these, and say which reaches the target first; nothing is recorded."""
    title: str | None = None
    """Of the report."""
    caption: str | None = None
    """What the report says about the comparison."""


def defaults(words: Sequence[str]) -> Compare:
    """What `compare` does unless told otherwise."""
    return from_file(Compare, words)


def run(args: Compare) -> int:
    """Run the methods one after another; gives the exit code."""
    from fedmime.cli import session
    from fedmime.cli.train import carry_out_all, summary
    from fedmime.experiments import compare, train, warm_start
    from fedmime.validation import count

    if args.rates:
        require_backend(args.backend, "local", "reference")
    seeds = range(args.seed, args.seed + count("compare", "seeds", args.seeds, least=1))
    session.start()
    setting = setting_of(args)
    name = task_name(setting.task)
    out = args.out or directory(f"compare-{name}")
    chosen, start = [], warm_start.opened(args.init)
    for method in compare.methods(args.methods, setting):
        settings = [dataclasses.replace(method.setting, seed=seed) for seed in seeds]
        each = [train.prepare(setting, args.data_dir, start) for setting in settings]
        chosen.append((method.label or each[0].label, each))
    labels = [label for label, _ in chosen]
    if twice := [label for i, label in enumerate(labels) if label in labels[:i]]:
        raise ConfigError(f"methods: two are called {twice[0]!r}; give each a label, such as slow=mime@0.01")
    if args.rates:
        return _try_rates(chosen, args)

    def place(label: str, seed: int) -> Path:
        return out / (label if args.seeds == 1 else f"{label}-seed{seed}").replace("/", "-")

    plans = [(label, [(each, place(label, each.setting.seed)) for each in prepared]) for label, prepared in chosen]
    if args.dry_run:
        from fedmime.cli.plan import show

        return max(show(*runs[0], args) for _, runs in plans)  # seeds cost the same
    rows = []
    with open_backend(args.backend, args.workers, args.ray_address):  # one Ray for all methods
        for label, runs in plans:
            for (prepared, path), result in zip(runs, carry_out_all(runs, args, label), strict=True):
                rows.append(summary(prepared, result, path) | {"method": label, "seconds": _seconds(path)})
    _tell(rows, out, [path for _, runs in plans for _, path in runs], args, name)
    return 0


def _seconds(run: Path) -> float:
    return json.loads((run / "status.json").read_text(encoding="utf-8"))["seconds"]


def _tell(rows: list[dict[str, Any]], out: Path, paths: list[Path], args: Compare, name: str) -> None:
    """Write the report and print the table: of runs, or of means where there are several seeds."""
    from fedmime.report import html, panel, recorded

    title = args.title or f"{name}: {len(args.methods)} methods"
    panel.remember(out, title, args.caption or "", list(dict.fromkeys(row["method"] for row in rows)))
    runs = recorded.load_all(paths)
    told: dict[str, Any] = {"methods": rows, "report": str(out / "report.html")}
    if panel.several(runs):
        found = panel.make(out, runs)
        panel.write(out / "report.html", title, [found])
        told["means"] = [row.facts() for row in found.rows()]
        show = functools.partial(_means, found)
    else:
        html.write(out / "report.html", title, recorded.load(out))
        show = functools.partial(_table, rows, args.title or name)
    if args.json:
        sys.stdout.write(json.dumps(told) + "\n")
        return
    from rich.console import Console

    console = Console()
    console.print(show())
    console.print(f"report: {told['report']}", highlight=False, soft_wrap=True)


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    from rich.table import Table

    from fedmime.cli.progress import clock, size

    target = rows[0]["target"]
    reached = "rounds to target" if target is None else f"rounds to {target:.0%}"
    metric = "accuracy" if any(row["accuracy"] is not None for row in rows) else "loss"
    table = Table("method", metric, "best", reached, "sent", "time", title=title)
    for row in rows:
        rounds = f"> {row['rounds']}" if row["rounds_to_target"] is None else str(row["rounds_to_target"])
        last, best = (_cell(metric, row[name]) for name in (metric, f"best_{metric}"))
        table.add_row(row["method"], last, best, rounds, size(row["bytes"]), clock(row["seconds"]))
    return table


def _cell(metric: str, value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}" if metric == "accuracy" else f"{value:.4g}"


def _means(found: Panel) -> Table:
    from rich.table import Column, Table

    from fedmime.report import panel

    *shown, _ = panel.columns(found.target)  # those of each seed are in the report
    table = Table(Column("method", no_wrap=True), *shown, title=found.title)
    for row in found.rows():
        table.add_row(row.label, *panel.cells(row)[:-1])
    return table


def _try_rates(chosen: list[tuple[str, list[Prepared]]], args: Compare) -> int:
    """Every method at every rate: rounds to the target, the best rate marked; gives the exit code."""
    from rich.console import Console
    from rich.table import Table

    from fedmime.cli.points import Points
    from fedmime.cli.signals import Signals
    from fedmime.experiments import rates

    found = {}
    with Signals() as signals, Points(args.quiet) as shown:
        for label, prepared in chosen:
            found[label] = rates.tried(label, prepared, args.rates, args.data_dir, shown.show, signals.stop)
    if args.json:
        sys.stdout.write(json.dumps({label: each.facts() for label, each in found.items()}) + "\n")
        return 0
    table = Table("rate", *found, title=args.title, caption="Rounds to the target, mean over seeds.")
    for rate, *words in zip(args.rates, *(each.words() for each in found.values()), strict=True):
        table.add_row(f"{rate:g}", *words)
    table.add_section()
    table.add_row("best", *(each.verdict() for each in found.values()))
    Console().print(table)
    return 0
