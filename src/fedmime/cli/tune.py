"""`fedmime tune`: choose the client rate on a small centralized sample."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmime import named
from fedmime.cli.naming import directory, task_name
from fedmime.cli.options import Asked, from_file, require_backend, setting_of


@dataclasses.dataclass(frozen=True)
class Tune(Asked):
    """Choose the client rate by centralized training on the data of a few clients, and carry it over."""

    clients: int = 20
    """How many clients' data the server has at hand."""
    central_rounds: int = 20
    """Rounds of centralized training, each of as many examples as these clients have."""
    check: bool = False
    """Also sweep the federated setting, to see how far the choice is from its optimum."""
    out: Path | None = None
    """Where results and points are kept; by default runs/tune-TASK-ALGORITHM."""


def defaults(words: Sequence[str]) -> Tune:
    """What `tune` does unless told otherwise."""
    return from_file(Tune, words)


def run(args: Tune) -> int:
    """Tune and tell; gives the exit code."""
    from fedmime.cli import session
    from fedmime.cli.points import Points
    from fedmime.cli.signals import Signals
    from fedmime.experiments.sweep_files import write_json
    from fedmime.experiments.tune import tune

    require_backend(args.backend, "local")
    session.start()
    setting = setting_of(args)
    out = args.out or directory(f"tune-{task_name(setting.task)}-{named.short(setting.algorithm)}")
    if args.fresh and not args.dry_run:
        shutil.rmtree(out / "cache", ignore_errors=True)
    with Signals() as signals, Points(args.quiet) as shown:
        found = tune(
            setting,
            clients=args.clients,
            rounds=args.central_rounds,
            check=args.check,
            data_dir=args.data_dir,
            cache=out / "cache",
            progress=shown.show,
            stop=signals.stop,
            dry_run=args.dry_run,
        )
    if args.dry_run:
        check = "" if found.federated is None else f", and {found.federated.runs:.3g} federated runs to check"
        runs, rounds = found.central.runs, found.central.rounds
        sys.stdout.write(f"{len(found.central.trials)} rates, {runs:.3g} runs of {rounds} central rounds{check}\n")
        return 0
    facts = found.facts()
    whole = facts | {"central": found.central.facts()}
    whole |= {} if found.federated is None else {"federated": found.federated.facts()}
    write_json(out / "tune.json", whole)
    sys.stdout.write(json.dumps(facts) + "\n" if args.json else f"{words(facts)}\n{out / 'tune.json'}\n")
    return 0


def words(facts: dict[str, Any]) -> str:
    """The choice in words."""
    metric = "accuracy" if "central_accuracy" in facts else "loss"

    def said(score: float) -> str:
        return f"{score:.2%}" if metric == "accuracy" else f"a test loss of {score:.4g}"

    told = f"eta {facts['eta']:.3g}: {said(facts[f'central_{metric}'])} by centralized training on the sample"
    if facts["at_edge"]:
        told += "; it lies on the edge of the grid"
    if "federated_eta" not in facts:
        return told + "."
    told += f". The federated optimum is eta {facts['federated_eta']:.3g} ({said(facts[f'federated_{metric}'])}), "
    told += f"{facts['decades_apart']:.2g} decades away; "
    carried = facts[f"carried_{metric}"]
    if carried is None:
        return told + "at the carried rate the federated run diverged."
    less = f"{100 * facts['lost']:.2g} points less" if metric == "accuracy" else f"{facts['lost']:.2g} more"
    return told + f"carried over the rate gives {said(carried)}, {less}."
