"""`fedmime eval`: a run's model on the test set and client by client."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from tyro.conf import Positional

from fedmime.cli.options import recorded_config
from fedmime.errors import CheckpointError, DataError


@dataclasses.dataclass(frozen=True)
class Eval:
    """Evaluate the model of a run on its task's test set and on every client's own test data."""

    run: Positional[Path]
    """The run's directory."""
    best: bool = False
    """The best model of the run instead of the last."""
    data_dir: Path | None = None
    """Where published files are kept; by default where the run found them."""
    json: bool = False
    """Print JSON instead of a table."""


def run(args: Eval) -> int:
    """Evaluate; gives the exit code."""
    import numpy as np

    from fedmime import backends
    from fedmime.cli import session
    from fedmime.engine.evaluate import evaluate, evaluate_clients
    from fedmime.experiments import train
    from fedmime.runs.directory import BEST, MODEL
    from fedmime.runs.run import read_model
    from fedmime.validation import started

    config, model = recorded_config(args.run), args.run / (BEST if args.best else MODEL)
    if not model.is_file():
        raise CheckpointError(f"{str(args.run)!r} holds no {model.name} yet; resume the run first")
    session.start()
    setting, beside = train.recorded(config, str(args.run / "config.yaml"))
    prepared = train.prepare(setting, args.data_dir or beside.data_dir)
    params = started("eval", model.name, read_model(model), prepared.problem.init)
    if prepared.population.test is None:
        raise DataError(f"eval: {setting.task} has no test set")
    local = backends.local().start(prepared.problem, params)
    found: dict[str, object] = {"run": str(args.run), "model": model.name}
    found |= {f"test_{k}": v for k, v in evaluate(local, params, prepared.population.test).items()}
    clients = prepared.population.test_clients
    if clients is not None:
        whole = np.flatnonzero(clients.sizes)
        each = evaluate_clients(local, params, [clients.client_at(int(i)) for i in whole])
        found["clients"] = len(whole)
        for name, values in each.items():
            shares = {f"{q}%": float(np.percentile(values, q)) for q in (5, 10, 25, 50, 75, 90)}
            found[f"client_{name}"] = {"mean": float(values.mean()), **shares}
    if args.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("metric", "test set", "clients: mean", "5%", "10%", "25%", "50%", "75%", "90%", title=str(args.run))
    for name in ("accuracy", "loss"):
        each = found.get(f"client_{name}")
        cells = [f"{v:.4f}" for v in each.values()] if isinstance(each, dict) else ["–"] * 7
        table.add_row(name, f"{found[f'test_{name}']:.4f}", *cells)
    Console().print(table)
    return 0
