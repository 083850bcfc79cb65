"""`fedmime diagnose`: the constants of a task and what they advise."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmime.cli.naming import OnStore, task_of
from fedmime.cli.progress import counter
from fedmime.errors import ConfigError
from fedmime.experiments.setting import Setting

if TYPE_CHECKING:
    from fedmime.experiments.diagnose import Diagnosis


@dataclasses.dataclass(frozen=True)
class Diagnose(OnStore):
    """Measure how alike a task's clients are; say which algorithm and how many local steps that favours."""

    task: str | None = None
    """What to look at: a name of `fedmime list tasks`, or your own fm.Task as MODULE:NAME or FILE.py:NAME."""
    data_dir: Path | None = None
    """Where published files are kept; by default $FEDMIME_DATA_DIR or the user's cache."""
    seed: int = 0
    """Of the model's start and of the clients drawn."""
    clients: int | None = None
    """Clients drawn for the gradients; by default 100, for convolutions and LSTMs 20."""
    curvature_clients: int | None = None
    """Clients drawn for the Hessians, the costly part; by default 20 or 5."""
    curvature_examples: int | None = None
    """Examples of each of these at most; by default all or 40."""
    eps: float | None = None
    """The squared gradient norm to reach; by default a tenth of that at the start."""
    cohort: int | None = None
    """Clients a round; by default the task's."""
    epochs: int | None = None
    """Local passes over a client's data, as the run will make; by default the task's."""
    steps: int | None = None
    """Local steps, instead of epochs."""
    along: int = 0
    """Also measure along this many rounds of FedAvg."""
    out: Path | None = None
    """Write JSON, an HTML page and figures into this directory."""
    json: bool = False
    """Print JSON instead of tables."""
    quiet: bool = False
    """No progress bar."""


def run(args: Diagnose) -> int:
    """Measure and tell; gives the exit code. Errors of the library are raised, for the dispatcher to print."""
    from fedmime.experiments.diagnose import diagnose
    from fedmime.experiments.diagnose_report import write
    from fedmime.experiments.diagnose_words import as_json

    if args.task is None and args.model is None and args.data is None:
        raise ConfigError("task: say what to look at, with --task NAME, or with --model and --data")
    task = task_of(Setting.task if args.task is None else args.task, args)
    with _progress(args.quiet) as progress:
        found = diagnose(
            task,
            data_dir=args.data_dir,
            seed=args.seed,
            clients=args.clients,
            curvature_clients=args.curvature_clients,
            curvature_examples=args.curvature_examples,
            eps=args.eps,
            cohort=args.cohort,
            epochs=args.epochs,
            steps=args.steps,
            along=args.along,
            progress=progress,
        )
    written = [] if args.out is None else write(found, args.out)
    if args.json:
        sys.stdout.write(json.dumps(as_json(found), ensure_ascii=False) + "\n")
        return 0
    _print(found)
    sys.stdout.writelines(f"{path}\n" for path in written)
    return 0


def _print(found: Diagnosis) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fedmime.experiments.diagnose_report import RATE_COLUMNS, constant_rows, rate_rows
    from fedmime.experiments.diagnose_words import caveats, disagreements, words

    console = Console()
    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "collapse_padding": True, "pad_edge": False}  # fits 80 columns
    title = f"{found.task}, {found.clients:,} clients"
    table = Table("", "value", "interval (95 %)", "what", title=title, **look)
    for row in constant_rows(found):
        table.add_row(*row)
    console.print(table)
    title = f"rounds until ‖∇f‖² ≤ {found.eps:.3g} by the rates, S = {found.cohort}, K = {found.K:,}"
    rates = Table(*RATE_COLUMNS, title=title, **look)
    for row in rate_rows(found):
        rates.add_row(*row, style="bold" if row[0] == found.favoured.method else None)
    console.print(rates)
    for heading, lines, style in (
        ("What this says", words(found), ""),
        ("Where runs did otherwise (docs/theory.md)", disagreements(found), ""),
        ("What this does not say", caveats(found), "dim"),
    ):
        console.print(f"\n{heading}:", highlight=False, style="bold")
        listed = Table.grid(padding=(0, 1))  # a grid, so that lines after the first are indented
        for line in lines:
            listed.add_row("-", Text(line), style=style)
        console.print(listed)
    costs = [one.cost for _, one in found.points if one.cost is not None]
    products, seconds = sum(cost.products for cost in costs), sum(cost.seconds for cost in costs)
    console.print(
        f"measured in {seconds:.0f} s with {products:,} Hessian-vector products", highlight=False, style="dim"
    )


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A progress bar on standard error."""
    with counter(quiet) as bar:
        task = bar.add_task("measuring", total=None)
        yield lambda what, done, total: bar.update(task, description=f"measuring, {what}", completed=done, total=total)
