"""`fedmime list`: what there is to choose from."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Literal

from tyro.conf import Positional


@dataclasses.dataclass(frozen=True)
class List:
    """Show the names that other verbs take."""

    what: Positional[Literal["tasks", "algorithms", "optimizers", "models", "datasets", "recipes"]] = "tasks"
    """Of what."""
    json: bool = False
    """Print JSON instead of a table."""


def run(args: List) -> int:
    """Print the names with a line about each."""
    rows = _rows(args.what)
    if args.json:
        sys.stdout.write(json.dumps(dict(rows), indent=1) + "\n")
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "what", title=args.what)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    return 0


def _rows(what: str) -> list[tuple[str, str]]:
    from fedmime.experiments import tasks
    from fedmime.experiments.setting import ALGORITHMS, BASES

    if what == "tasks":
        return [(task.name, task.about + " (published files)" * task.published) for task in tasks.TASKS.values()]
    if what == "recipes":
        return [
            (t.name, f"{t.rounds} rounds, {t.cohort} clients, batch {t.batch_size}, {t.epochs} epoch, eta {t.eta:g}")
            for t in tasks.TASKS.values()
        ]
    if what == "datasets":
        from fedmime.data import catalog
        from fedmime.data.sources import EMBEDDED

        return [*EMBEDDED.items(), *((d.name, d.about) for d in catalog.DATASETS.values())]
    from fedmime import algorithms, models, optimizers

    home, names = {
        "algorithms": (algorithms, ALGORITHMS),
        "optimizers": (optimizers, BASES),
        "models": (models, ("logistic", "mlp", "cnn", "char_lstm", "word_lstm", "from_flax", "from_equinox")),
    }[what]
    return [(name, _first_line(getattr(home, name).__doc__)) for name in names]


def _first_line(text: str | None) -> str:
    """The beginning of a docstring, without its mathematics."""
    line = (text or "").strip().split("\n")[0]
    return line.replace("$", "").replace("\\mathcal{B}", "B").replace("\\eta", "η").replace("`", "")
