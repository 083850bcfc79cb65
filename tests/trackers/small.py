"""One small run for the tests of callbacks, which can be made to break off between two checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, o, population, roomy
from fedmime.trackers import Callback

ROUNDS, EVERY = 5, 2
POPULATION = population([5, 3, 8, 6])
BACKEND = roomy()


def simulate(
    run_dir: Path | None, *callbacks: Callback, rounds: int = ROUNDS, fresh: bool = False, **given: Any
) -> fm.Run:
    """A run of Mime; the fields that are not measured in every round are NaN or missing in some."""
    method = given.pop("algorithm", a.mime(o.momentum(), eta=0.1))
    return fm.simulate(
        method, PROBLEM, POPULATION, rounds, 3, batch_size=4, run_dir=run_dir, evaluate_every=2,
        saving=fm.Saving(every=EVERY, fresh=fresh), callbacks=callbacks, backend=BACKEND, **given,
    )  # fmt: skip


def break_off(run_dir: Path, *callbacks: Callback, after: int = 3) -> None:
    """Run until an error comes after a round whose row is written and told, but in no checkpoint."""

    def on_round(info: fm.Info, measured: object) -> None:
        if info.round + 1 == after:
            raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        simulate(run_dir, *callbacks, on_round=on_round)


def written(run_dir: Path) -> dict[int, dict[str, float]]:
    """The finite numbers of `metrics.jsonl`, read without this package: by step, then by name."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {
        row.pop("round") + 1: {k: float(v) for k, v in row.items() if isinstance(v, int | float) and math.isfinite(v)}
        for row in rows
    }
