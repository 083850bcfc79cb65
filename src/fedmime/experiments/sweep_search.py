"""Other searches than grids: Optuna proposes points, a sweep of one point each trains them."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmime.errors import ConfigError
from fedmime.experiments import grid as grids
from fedmime.experiments.setting import Setting
from fedmime.experiments.sweep import sweep
from fedmime.validation import POSITIVE, count, real

__all__ = ["search"]

_LOOKS = (0.25, 0.5, 1.0)  # shares of the rounds after which a study may give a point up


def search(
    setting: Setting,
    space: Mapping[str, tuple[float, float]],
    points: int = 20,
    *,
    study: Any = None,
    data_dir: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Any:
    """Let Optuna look for the best point between the ends of every axis, on a logarithmic scale; gives the study.

    Args:
        space: such as `{"eta": (1e-3, 1.0), "optimizer.eps": (1e-7, 1e-1)}`.
        study: one made by `optuna.create_study(direction="maximize", ...)`; by default a new one, seeded.
        cache: a directory where points are kept, so that those given up early can be gone on with.
    """
    optuna = _optuna()
    count("search", "points", points, least=1)
    for name, ends in space.items():
        if name not in grids.AXES or len(ends) != 2:
            raise ConfigError(
                f"search: an axis is one of {', '.join(grids.AXES)} with two ends, got {name!r}: {ends!r}"
            )
        low, high = (real("search", name, end, POSITIVE) for end in ends)
        if low >= high:
            raise ConfigError(f"search: {name} must rise from its first end to its second, got {ends!r}")
    if study is None:
        sampler = optuna.samplers.TPESampler(seed=setting.seed)
        study = optuna.create_study(direction="maximize", sampler=sampler, pruner=optuna.pruners.MedianPruner())
    with tempfile.TemporaryDirectory() as temporary:
        kept = Path(temporary) if cache is None else Path(cache)
        study.optimize(lambda trial: _objective(trial, optuna, setting, space, data_dir, kept), n_trials=points)
    return study


def _objective(
    trial: Any, optuna: Any, setting: Setting, space: Mapping[str, tuple[float, float]], data_dir: Any, cache: Path
) -> float:
    values = {name: trial.suggest_float(name, *ends, log=True) for name, ends in space.items()}
    point = {name: (value,) for name, value in values.items()}
    rounds = setting.rounds or 100
    score = -math.inf
    for share in _LOOKS:
        until = max(1, round(share * rounds))
        found = sweep(grids.at(setting, {"rounds": until}), point, data_dir=data_dir, cache=cache)
        if found.lost:
            raise optuna.TrialPruned
        score = found.best.score(until)
        trial.report(score, until)
        if trial.should_prune():
            raise optuna.TrialPruned
    return score


def _optuna() -> Any:
    try:
        import optuna  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError("searches by Optuna are an extra: pip install 'fedmime[search]'") from None
    return optuna
