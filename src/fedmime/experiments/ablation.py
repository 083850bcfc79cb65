"""`reproduce ablation`: Mime and MimeLite beside FedAvg, SCAFFOLD, FedProx and Loc-Mime, ten local epochs each."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from fedmime.experiments import grid as grids
from fedmime.experiments.grid import Grid
from fedmime.experiments.reproduce_order import Order, Tuned, array, curve, repeat, tune
from fedmime.experiments.setting import Optimizer, Setting

MOMENTUM = Optimizer(beta=0.9)
METHODS: dict[str, dict[str, Any]] = {
    "Mime": {"algorithm": "mime", "base": "momentum", "optimizer": MOMENTUM},
    "MimeLite": {"algorithm": "mime_lite", "base": "momentum", "optimizer": MOMENTUM},
    "FedAvg": {"algorithm": "fedavg", "base": "momentum", "optimizer": MOMENTUM},
    # Momentum (1-β)g + βm is damped: from m = 0 it starts 1/(1-β) = 10 times slower than FedAvg without it.
    "FedAvg, server rate 10": {"algorithm": "fedavg", "base": "momentum", "optimizer": MOMENTUM, "eta_server": 10.0},
    "SCAFFOLD": {"algorithm": "scaffold", "base": "sgd"},
    "FedProx": {"algorithm": "fedprox", "base": "sgd", "mu": 0.1},
    "Loc-Mime": {"algorithm": "mime", "base": "momentum", "optimizer": MOMENTUM, "state": "local"},
    "FedAvg, β = 0": {"algorithm": "fedavg", "base": "sgd"},
    "Mime, β = 0": {"algorithm": "mime", "base": "sgd"},
}
SEVEN = tuple(METHODS)[:7]  # all but those without momentum
REFERENCE = "FedAvg"


class Scale(NamedTuple):
    """What is run at one scale."""

    rounds: int
    tuning: int  # rounds of the runs that choose the rates
    cohort: int
    epochs: int
    every: int
    seeds: int
    finer: bool  # rates between those of the light sweep
    search: bool  # also β and μ, over the paper's values
    methods: tuple[str, ...]
    rates: tuple[float, ...]


_LIGHT = tuple(grids.LIGHT["eta"])
SCALES = {
    "full": Scale(1000, 1000, 20, 10, 10, 3, True, True, tuple(METHODS), _LIGHT),
    "small": Scale(200, 40, 20, 10, 5, 3, True, False, SEVEN, _LIGHT),
    "smoke": Scale(4, 2, 5, 2, 2, 2, False, False, SEVEN, (1.0, 0.1)),
}


def run(order: Order) -> dict[str, Any]:
    """All methods at the order's scale."""
    return tuned_and_repeated(order, SCALES[order.scale])


def tuned_and_repeated(order: Order, scale: Scale) -> dict[str, Any]:
    """Tune every method at the first seed, then repeat it with every seed; gives plain data."""
    seeds = range(scale.seeds if order.seeds is None else order.seeds)
    after = list(range(scale.every, scale.rounds + 1, scale.every))
    curves: dict[str, list[list[float | None]]] = {name: [] for name in scale.methods}
    chosen = {name: _tuned(order, name, scale) for name in scale.methods}
    for seed in seeds:
        for name in scale.methods:
            trial = repeat(order, setting(order, name, scale, scale.rounds), chosen[name].values, seed)
            curves[name].append(curve(trial, after))
    facts = scale._asdict() | {"scale": order.scale, "task": order.task("mlp"), "seeds": len(seeds)}
    data = {"setting": facts, "after": after, "curves": curves}
    data["tuning"] = {name: tuned._asdict() for name, tuned in chosen.items()}
    return data | findings(data)


def setting(order: Order, name: str, scale: Scale, rounds: int) -> Setting:
    """A method's setting."""
    return Setting(
        task=order.task("mlp"),
        rounds=rounds,
        cohort=scale.cohort,
        epochs=scale.epochs,
        evaluate_every=scale.every,
        **METHODS[name],
    )


def _tuned(order: Order, name: str, scale: Scale) -> Tuned:
    grid: Grid = {"eta": scale.rates}
    if scale.search and "optimizer" in METHODS[name]:
        grid = {**grid, "optimizer.beta": (0.9, 0.99)}  # β = 0 is a method of its own
    if scale.search and "mu" in METHODS[name]:
        grid = {**grid, "mu": (0.1, 0.5, 1.0)}
    base = dataclasses.replace(setting(order, name, scale, scale.tuning), seed=0)
    return tune(order, base, grid, scale.finer)


def findings(data: dict[str, Any]) -> dict[str, Any]:
    """Rounds until the mean over seeds reaches the highest mean accuracy of FedAvg, and other marks on the way."""
    after = np.asarray(data["after"])
    means = {name: array(rows).mean(axis=0) for name, rows in data["curves"].items()}
    target = float(np.nanmax(means[REFERENCE])) if np.isfinite(means[REFERENCE]).any() else 1.0
    marks = [mark / 100 for mark in range(5, 100, 5) if mark / 100 < target][-4:]
    return {
        "target": target,
        "rounds_to_target": {name: first(after, mean, target) for name, mean in means.items()},
        "rounds_to_target_by_seed": {name: _by_seed(data, name, after) for name in means},
        "marks": {f"{mark:.0%}": {name: first(after, mean, mark) for name, mean in means.items()} for mark in marks},
        "final": {name: _final(array(rows)) for name, rows in data["curves"].items()},
        "highest": {
            name: _known(np.nanmax(mean) if np.isfinite(mean).any() else np.nan) for name, mean in means.items()
        },
    }


def first(after: np.ndarray, values: np.ndarray, target: float) -> int | None:
    """After how many rounds a curve first reaches a value."""
    reached = np.flatnonzero(values >= target)
    return int(after[reached[0]]) if len(reached) else None


def _by_seed(data: dict[str, Any], name: str, after: np.ndarray) -> list[int | None]:
    """The same for each seed, with the highest accuracy of FedAvg at that seed."""
    pairs = zip(array(data["curves"][name]), array(data["curves"][REFERENCE]), strict=True)
    return [first(after, mine, np.nanmax(theirs) if np.isfinite(theirs).any() else 1.0) for mine, theirs in pairs]


def _final(rows: np.ndarray) -> list[float | None]:
    """Each seed's accuracy after the last round."""
    return [_known(value) for value in rows[:, -1]]


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
