"""`fedmime sweep`: a grid over any numbers of a setting."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedmime import named
from fedmime.cli.naming import directory, task_name
from fedmime.cli.options import Warm, from_file, open_backend, require_backend, setting_of
from fedmime.errors import ConfigError

if TYPE_CHECKING:
    from fedmime.experiments.sweep import Swept


@dataclasses.dataclass(frozen=True)
class Sweep(Warm):
    """Train at every point of a grid and compare. The same command goes on with a sweep that was broken off."""

    grid: tuple[str, ...] = ()
    """Axes such as eta=1,0.3,0.1 optimizer.eps=1e-3,1e-7; by default --light."""
    light: bool = False
    """The paper's nine client rates."""
    heavy: bool = False
    """The paper's 567 points: client rate, server rate, ε."""
    halving: bool = False
    """After a quarter of the rounds go on with the better third; nine points then cost 4.5 runs."""
    workers: int | None = None
    """Processes that divide the points among them, here or on Ray; by default what is faster, on Ray 2."""
    out: Path | None = None
    """Where results and points are kept; by default runs/sweep-TASK-ALGORITHM."""


def defaults(words: Sequence[str]) -> Sweep:
    """What `sweep` does unless told otherwise."""
    return from_file(Sweep, words)


def run(args: Sweep) -> int:
    """Sweep and write; gives the exit code."""
    from fedmime.cli import session
    from fedmime.cli.points import Points
    from fedmime.cli.signals import Signals
    from fedmime.experiments import grid as grids
    from fedmime.experiments import sweep_files, warm_start
    from fedmime.experiments.sweep import sweep

    require_backend(args.backend, "local", "ray")
    if args.light + args.heavy + bool(args.grid) > 1:
        raise ConfigError("sweep: give one of --grid, --light and --heavy")
    grid = grids.HEAVY if args.heavy else grids.parse(args.grid) if args.grid else grids.LIGHT
    session.start()
    setting = setting_of(args)
    out = args.out or directory(f"sweep-{task_name(setting.task)}-{named.short(setting.algorithm)}")
    if args.fresh and not args.dry_run:
        shutil.rmtree(out / "cache", ignore_errors=True)
    on_ray = Warm.workers if args.workers is None else args.workers
    with (
        Signals() as signals,
        Points(args.quiet) as shown,
        open_backend(args.backend, on_ray, args.ray_address) as backend,
    ):
        swept = sweep(
            setting,
            grid,
            halving=args.halving,
            workers=args.workers if args.backend == "local" else None,
            backend=backend,
            data_dir=args.data_dir,
            start=warm_start.opened(args.init),
            cache=out / "cache",
            progress=shown.show,
            say=shown.say,
            stop=signals.stop,
            dry_run=args.dry_run,
        )
    if args.dry_run:
        sys.stdout.write(f"{len(swept.trials)} points, {swept.runs:.3g} full runs\n")
        return 0
    written = sweep_files.write(swept, out)
    if args.json:
        sys.stdout.write(json.dumps(swept.facts(), allow_nan=False) + "\n")
    else:
        _tell(swept, written)
    return 0


def _tell(swept: Swept, written: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedmime.experiments import sweep_files

    console = Console()
    table = Table(
        *swept.grid, swept.metric, "rounds", "what became of it", title=f"{swept.label}, {swept.rounds} rounds"
    )
    for row in sweep_files.rows(swept):
        table.add_row(*row)
    console.print(table)
    for line in (sweep_files.notice(swept), *map(str, written)):
        console.print(line, highlight=False, soft_wrap=True)
