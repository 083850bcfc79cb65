"""`fedmime eval`: a run's model on the test set, client by client, and after fine-tuning on each client's own data."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from fedmime.cli.naming import OnStore, task_of
from fedmime.cli.options import recorded_config
from fedmime.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from fedmime.engine.evaluation import Evaluation, Spread


@dataclasses.dataclass(frozen=True)
class Eval:
    """Evaluate the model of a run on its task's test set and on every client's own data."""

    run: Positional[Path]
    """The run's directory."""
    best: bool = False
    """The best model of the run instead of the last."""
    task: str | None = None
    """The task whose model and data the run has; for a run that was made in Python, which records none."""
    data_dir: Path | None = None
    """Where published files are kept; by default where the run found them."""
    clients: int | None = None
    """Measure so many clients one by one, evenly spaced; by default all."""
    split: Literal["test", "train"] = "test"
    """Measure clients on their test examples where there are any, or on their training examples in any case."""
    finetune: int | None = None
    """Let every client take so many steps of SGD on its own data, and measure it before and after."""
    finetune_eta: float | None = None
    """The rate of these steps; by default the one at which plain SGD learns the task."""
    finetune_batch: int = 10
    """Examples of each of these steps."""
    hold_out: float = 0.2
    """The fraction of its examples that a client is measured on after fine-tuning, where it has no test examples."""
    seed: int = 0
    """Of mini-batches, of dropout, and of what is held out."""
    backend: Literal["local", "reference"] = "local"
    """Where clients run: compiled on this machine's devices, or eagerly one after another."""
    json: bool = False
    """Print JSON, with the figures of every client, instead of a table."""


def run(args: Eval) -> int:
    """Evaluate; gives the exit code."""
    from fedmime.cli import session
    from fedmime.engine import evaluate
    from fedmime.experiments import tasks, train
    from fedmime.runs.directory import BEST, MODEL
    from fedmime.runs.run import read_model

    config, model = recorded_config(args.run), args.run / (BEST if args.best else MODEL)
    if not model.is_file():
        raise CheckpointError(f"{str(args.run)!r} holds no {model.name} yet; resume the run first")
    name, data_dir = _task(args, config)
    task = tasks.get(name)
    session.start()
    problem, population = train.opened(name, args.data_dir or data_dir)
    found = evaluate(
        problem,
        read_model(model),
        population,
        args.clients,
        args.split,
        finetune=args.finetune,
        finetune_eta=task.eta if args.finetune_eta is None else args.finetune_eta,
        finetune_batch_size=args.finetune_batch,
        hold_out=args.hold_out,
        seed=args.seed,
        backend=args.backend,
    )
    if args.json:
        prefix = found.pooled_on.replace(" ", "_")
        told = {"run": str(args.run), "model": model.name, "task": name}
        told |= {f"{prefix}_{name}": value for name, value in found.pooled.items()} | found.to_dict()
        sys.stdout.write(json.dumps(told, allow_nan=False) + "\n")
        return 0
    from rich.console import Console

    console = Console()
    console.print(_table(found, f"{args.run}/{model.name}"))
    return 0


def _task(args: Eval, config: dict[str, Any]) -> tuple[str, Path | None]:
    """The task of a run, and where it found its data. A run of the command line has recorded both."""
    from fedmime.experiments import train

    if "task" in config:
        setting, beside = train.recorded(config, str(args.run / "config.yaml"))
        if args.task is not None and task_of(args.task, OnStore()) != setting.task:
            raise ConfigError(f"task: {str(args.run)!r} is a run of {setting.task!r}, got {args.task!r}")
        return setting.task, beside.data_dir
    if args.task is None:
        raise ConfigError(f"task: {str(args.run)!r} was made in Python and records no task; give it as --task NAME")
    return task_of(args.task, OnStore()), None


def _table(found: Evaluation, title: str) -> Table:
    """One row for each metric, and one more for its values after fine-tuning."""
    from rich.table import Column, Table

    kinds = {"test": "test", "train": "training", "held out": "held-out"}
    table = Table(Column("metric", no_wrap=True), f"{kinds[found.pooled_on]} set", title=title)
    for name in ("clients: mean", "± std", "worst decile", "10 %", "50 %", "90 %"):
        table.add_column(name, justify="right")
    for name in found.clients:
        table.add_row(name, f"{found.pooled[name]:.4f}", *_cells(found.spread(name)))
        if found.finetuning is not None:
            after = found.spread(name, finetuned=True)
            table.add_row(f"after {found.finetuning.steps} steps", "–", *_cells(after))
    own = kinds[found.clients_on]
    table.caption = f"{len(found.ids)} clients, each on its own {own} examples; all clients count the same."
    return table


def _cells(spread: Spread) -> list[str]:
    deciles = [spread.deciles[i] for i in (0, 4, 8)]
    return [f"{value:.4f}" for value in (spread.mean, spread.std, spread.worst_decile, *deciles)]
