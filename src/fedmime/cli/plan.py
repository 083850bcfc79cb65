"""`--dry-run`: the resolved setting and what it will cost."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmime.cli.options import Asked
    from fedmime.experiments.train import Prepared


def show(prepared: Prepared, out: Path, asked: Asked) -> int:
    """Print the plan, unless the run would be refused; nothing is written."""
    from fedmime.cli.options import open_backend
    from fedmime.cli.progress import clock, size
    from fedmime.engine import Saving
    from fedmime.experiments import train
    from fedmime.experiments.plan import plan
    from fedmime.experiments.setting import plain

    saving = Saving(asked.checkpoint_every, asked.keep, asked.fresh)
    with open_backend(asked.backend, asked.workers, asked.ray_address) as backend:
        train.run(prepared, out, saving=saving, backend=backend, dry_run=True)
    found = plan(prepared)
    if asked.json:
        told = {"setting": plain(prepared.setting), "plan": dataclasses.asdict(found), "out": str(out)}
        sys.stdout.write(json.dumps(told) + "\n")
        return 0
    import yaml
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(yaml.safe_dump(plain(prepared.setting), sort_keys=False).rstrip(), highlight=False, markup=False)
    table = Table("", "", title=f"plan of {found.method} (nothing was run)", show_header=False)
    table.add_row("clients", f"{found.cohort:,} of {found.clients:,} a round, {found.examples:,.0f} examples")
    gradients = f", {found.gradient_rounds} of them gradient-only" if found.gradient_rounds else ""
    table.add_row("rounds", f"{found.rounds:,}{gradients}")
    table.add_row("local steps", f"{found.local_steps:,.0f} a round")
    table.add_row("model", f"{found.parameters:,} parameters, {size(found.model_bytes)}")
    table.add_row(
        "sent", f"{size(found.bytes_down)} down, {size(found.bytes_up)} up a round; {size(found.total_bytes)} in all"
    )
    table.add_row(
        "time", f"about {found.seconds:.2g} s a round, {clock(found.total_seconds)} in all, compiling not counted"
    )
    table.add_row("directory", str(out))
    console.print(table)
    return 0
