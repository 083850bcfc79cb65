"""`fedmime reproduce`: one command for each figure and table of the paper."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

if TYPE_CHECKING:
    from fedmime.experiments.reproduce import Reproduced


_WIDTH = 150  # of tables that do not go to a terminal


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Make a figure or table of the paper again. The same command goes on with one that was broken off."""

    name: Positional[
        Literal[
            "ablation",
            "steps",
            "accuracies",
            "stability",
            "drift",
            "communication",
            "theory",
            "compression",
            "privacy",
            "sparsity",
        ]
    ]
    """Which one. `compression`, `privacy` and `sparsity` are our own: accuracy against bytes, against ε, and where
    gradients are sparse."""
    scale: Literal["full", "small", "smoke"] = "small"
    """The paper's setting, one that takes two cores about an hour (the table of accuracies: more than a day, see
    --share), or one that takes seconds."""
    data_dir: Path | None = None
    """The published files; without, the data that comes with the package."""
    seeds: int | None = None
    """How many seeds, instead of the scale's number."""
    columns: tuple[Literal["logistic", "cnn", "shakespeare", "stackoverflow"], ...] = ()
    """Of the table of accuracies; by default all that there is data for."""
    share: float = 1.0
    """Of the scale's rounds, in the table of accuracies: a first look. With a larger one the same command goes on."""
    out: Path | None = None
    """Where everything is written; by default runs/reproduce/NAME-SCALE."""
    json: bool = False
    """Print the data as JSON instead of tables."""
    quiet: bool = False
    """No progress."""


def run(args: Reproduce) -> int:
    """Compute, draw, write; gives the exit code."""
    from fedmime.cli import session
    from fedmime.cli.points import Points
    from fedmime.cli.signals import Signals
    from fedmime.experiments.reproduce import reproduce

    session.start()
    with Signals() as signals, Points(args.quiet) as points:
        found = reproduce(
            args.name,
            args.scale,
            data_dir=args.data_dir,
            seeds=args.seeds,
            columns=args.columns or None,
            share=args.share,
            out=args.out,
            progress=points.show,
            stop=signals.stop,
        )
    _tell(found, args.json)
    return 0


def _tell(found: Reproduced, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(found.data, allow_nan=False) + "\n")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    for title, table in found.tables:
        shown = Table(*table.head, title=title, caption=table.caption or None)
        for row in table.rows:
            shown.add_row(*(Text(cell) for cell in row))
        console.print(shown)
    for path in found.files:
        console.print(str(path), highlight=False, soft_wrap=True)
