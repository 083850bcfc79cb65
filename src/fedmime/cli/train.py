"""`fedmime train` and `fedmime resume`: one run, saved so that it can always go on."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from fedmime.cli.naming import directory, task_name
from fedmime.cli.options import (
    BackendName,
    Tracked,
    from_file,
    open_backend,
    open_trackers,
    recorded_config,
    setting_of,
)
from fedmime.errors import ConfigError

if TYPE_CHECKING:
    from fedmime.engine import Run
    from fedmime.experiments.train import Prepared


@dataclasses.dataclass(frozen=True)
class Train(Tracked):
    """Train one model. The same command goes on with a run that was broken off."""


@dataclasses.dataclass(frozen=True)
class Resume:
    """Go on with a run, exactly as if it had never been broken off."""

    run: Positional[Path]
    """Its directory."""
    rounds: int | None = None
    """Go on to this round instead of the one first asked for."""
    backend: BackendName = "local"
    """Where clients run; a run may go on elsewhere than it began."""
    workers: int = 2
    """Worker processes of the back end on Ray."""
    ray_address: str | None = None
    """A running Ray cluster to join; by default Ray is started here for the run."""
    json: bool = False
    """Print the result as JSON."""
    quiet: bool = False
    """No progress."""


def defaults(words: Sequence[str]) -> Train:
    """What `train` does unless told otherwise."""
    return from_file(Train, words)


def run(args: Train) -> int:
    """Train; gives the exit code."""
    from fedmime.cli import session
    from fedmime.experiments import train, warm_start

    session.start()
    prepared = train.prepare(setting_of(args), args.data_dir, warm_start.opened(args.init))
    out = args.out or directory(task_name(prepared.setting.task), f"{prepared.label}-seed{args.seed}")
    if args.dry_run:
        from fedmime.cli.plan import show

        return show(prepared, out, args)
    result = carry_out(prepared, out, args)
    return tell(prepared, result, out, args.json)


def resume(args: Resume) -> int:
    """Go on with a run; gives the exit code."""
    from fedmime.cli import session
    from fedmime.experiments import train, warm_start

    setting, beside = train.recorded(recorded_config(args.run), str(args.run / "config.yaml"))
    if (args.run / "fleet.json").exists():
        raise ConfigError(f"{str(args.run)!r} was deployed; repeat its command to go on: it is in command.txt there")
    if args.rounds is not None:
        setting = dataclasses.replace(setting, rounds=args.rounds)
    session.start()
    prepared = train.prepare(setting, beside.data_dir, warm_start.kept(args.run, beside.init))
    asked = Tracked(
        checkpoint_every=beside.checkpoint_every,
        keep=beside.keep,
        data_dir=beside.data_dir,
        quiet=args.quiet,
        backend=args.backend,
        workers=args.workers,
        ray_address=args.ray_address,
        track=beside.track,
        track_project=beside.track_project,
    )
    result = carry_out(prepared, args.run, asked, name=beside.label)
    return tell(prepared, result, args.run, args.json)


def carry_out(prepared: Prepared, out: Path, asked: Tracked, name: str | None = None) -> Run:
    """Run what was prepared, with progress, ready for signals."""
    return carry_out_all([(prepared, out)], asked, name)[0]


def carry_out_all(runs: Sequence[tuple[Prepared, Path]], asked: Tracked, name: str | None = None) -> list[Run]:
    """Run one method with several seeds, one after another, each in its directory; one line shows their progress."""
    import jax

    from fedmime.aggregation import communication
    from fedmime.cli.progress import Progress
    from fedmime.cli.signals import Signals
    from fedmime.engine import Saving
    from fedmime.experiments import train

    first = runs[0][0]
    s = first.setting
    assert s.rounds is not None
    assert s.cohort is not None
    model = jax.eval_shape(first.problem.init, jax.eval_shape(jax.random.key, 0))
    units = s.cohort // 2 if s.split else s.cohort
    sent = 0 if first.algorithm.pooled else communication.cost(first.algorithm, model, first.aggregation).bytes * units
    saving = Saving(asked.checkpoint_every, asked.keep, asked.fresh)
    tracking = train.Tracking(asked.track, asked.track_project, open_trackers(asked.track, asked.track_project))
    results = []
    with (
        Signals() as signals,
        Progress(name or first.label, s.rounds * len(runs), sent, asked.quiet) as progress,
        open_backend(asked.backend, asked.workers, asked.ray_address) as backend,
    ):
        for place, (prepared, out) in enumerate(runs):
            progress.before = place * s.rounds
            found = train.run(
                prepared,
                out,
                saving=saving,
                name=name,
                data_dir=asked.data_dir,
                backend=backend,
                tracking=tracking,
                on_round=progress.on_round,
                stop=signals.stop,
            )
            results.append(found)
    return results


def summary(prepared: Prepared, result: Run, out: Path) -> dict[str, Any]:
    """What a finished run comes to."""
    import numpy as np

    from fedmime.experiments.setting import plain
    from fedmime.report import target as targets
    from fedmime.runs.history import clean

    history = result.history
    target = targets.asked(plain(prepared.setting))
    accuracy = history.get("test_accuracy", np.full(1, np.nan))
    measured = accuracy[~np.isnan(accuracy)]
    losses = history.get("test_loss", np.full(1, np.nan))
    finite = losses[np.isfinite(losses)]
    return {
        "method": prepared.label,
        "seed": prepared.setting.seed,
        "rounds": len(history["round"]),
        "accuracy": clean(float(measured[-1])) if len(measured) else None,
        "best_accuracy": clean(float(measured.max())) if len(measured) else None,
        "loss": clean(float(losses[-1])),
        "best_loss": float(finite.min()) if len(finite) else None,
        "target": prepared.setting.target,
        "target_gap": prepared.setting.target_gap,
        "train_loss": clean(float(history["train_loss"][-1])) if "train_loss" in history else None,
        "rounds_to_target": None if target is None else target.rounds(history),
        "bytes": int(history["bytes_total"][-1]),
        "epsilon": clean(float(history["epsilon"][-1])) if "epsilon" in history else None,
        "abandoned": int(history["abandoned"].sum()),
        "out": str(out),
    }


def tell(prepared: Prepared, result: Run, out: Path, as_json: bool) -> int:
    """Print what a finished run comes to; gives the exit code."""
    from fedmime.cli.progress import size

    found, s = summary(prepared, result, out), prepared.setting
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    accuracy = "no test set" if found["loss"] is None else f"test loss {found['loss']:.6g}"
    accuracy = accuracy if found["accuracy"] is None else f"accuracy {found['accuracy']:.2%}"
    if found["train_loss"] is not None:
        accuracy += f", training loss {found['train_loss']:.6f}"
    aim = found["target"] if found["target_gap"] is None else found["target_gap"]
    words = "" if aim is None else f", {aim:.0%}" if found["target_gap"] is None else f", within {aim:g} of its optimum"
    reached = found["rounds_to_target"]
    target = words and words + (f" after {reached} rounds" if reached else " not reached")
    private = "" if found["epsilon"] is None else f", ε {found['epsilon']:.3g} at δ {s.aggregation.delta:g}"
    sent = f"{size(found['bytes'])} sent{private}"
    sys.stdout.write(f"{found['method']}: {found['rounds']} rounds, {accuracy}{target}, {sent}; {out}\n")
    return 0
