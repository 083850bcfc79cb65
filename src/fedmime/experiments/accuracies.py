"""`reproduce accuracies`: three methods with four base optimizers, all with the same communication a round."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax

from fedmime.aggregation.communication import cohort_for_budget
from fedmime.experiments import grid as grids
from fedmime.experiments import recipes, tasks
from fedmime.experiments.reproduce_order import Order, curve, repeat, tune
from fedmime.experiments.setting import Setting
from fedmime.experiments.task import Task

BASES = {"SGD": "sgd", "Mom": "momentum", "Adam": "adam", "Adagrad": "adagrad"}
ALGORITHMS = {"FedAvg": "fedavg", "MimeLite": "mime_lite", "Mime": "mime"}
PAPER = {  # per cent, in the order of the methods: FedAvg, MimeLite, Mime with each base
    "logistic": (66.8, 66.8, 67.4, 67.4, 67.4, 67.5, 67.3, 68.0, 68.0, 67.6, 66.6, 67.4),
    "cnn": (85.8, 85.8, 85.3, 85.7, 86.0, 85.9, 85.9, 86.4, 86.6, 86.3, 85.5, 86.3),
    "shakespeare": (56.7, 56.7, 56.1, 55.4, 49.8, 53.6, 18.5, 54.0, 54.1, 55.5, 56.8, 57.1),
    "stackoverflow": (23.8, 23.8, 12.5, 22.2, 19.9, 19.3, 3.2, 21.5, 22.8, 24.2, 23.8, 14.7),
}
UNDAMPED = {  # beside the paper's: momentum (1-β)g + βm at server rate 1 starts 1/(1-β) = 10 times slower than SGD
    "FedAvgMom, server rate 10": {"algorithm": "fedavg", "base": "momentum", "split": False, "eta_server": 10.0}
}
PUBLISHED = ("shakespeare", "stackoverflow")  # columns that need the published files


class Column(NamedTuple):
    """A data set and model, and how long it is trained."""

    name: str
    rounds: int
    tuning: int  # rounds of the runs that choose the rates
    rates: tuple[float, ...]
    bases: tuple[str, ...] = tuple(BASES)


class Scale(NamedTuple):
    """What is run at one scale."""

    columns: tuple[Column, ...]
    seeds: int


_LIGHT = tuple(grids.LIGHT["eta"])
_DECADES = _LIGHT[::2]
SCALES = {
    "full": Scale(tuple(Column(name, 1000, 1000, _LIGHT) for name in PAPER), 3),
    "small": Scale(
        (
            Column("logistic", 300, 160, _LIGHT),
            Column("cnn", 20, 20, _DECADES, ("SGD", "Mom")),
            Column("shakespeare", 60, 10, _DECADES[:2], ("SGD",)),
        ),
        3,
    ),
    "smoke": Scale((Column("logistic", 4, 2, (1.0, 0.1), ("Adam",)),), 1),
}


def run(order: Order) -> dict[str, Any]:
    """Tune every method on every column at the first seed and repeat it with every seed."""
    scale = SCALES[order.scale]
    seeds = range(scale.seeds if order.seeds is None else order.seeds)
    rows: list[dict[str, Any]] = []
    for column in scale.columns:
        if column.name in PUBLISHED and order.data_dir is None:
            continue
        paper = dict(zip(methods(), PAPER[column.name], strict=True))
        bases = [BASES[base] for base in column.bases]
        for name, asked in (methods() | UNDAMPED).items():
            if asked["base"] in bases:
                found = rows[-1] if name == "MimeLiteSGD" else _measure(order, column, asked, seeds)
                told = paper[name] / 100 if name in paper else None
                rows.append(found | {"method": name, "paper": told})
    return {"setting": {"scale": order.scale, "seeds": len(seeds)}, "rows": rows}


def methods() -> dict[str, dict[str, Any]]:
    """All twelve, in the order of the paper's table. MimeLiteSGD tracks nothing: it is FedAvgSGD, the row before."""
    found = {}
    for short, base in BASES.items():
        for name, algorithm in ALGORITHMS.items():
            paired = algorithm != "fedavg" and (algorithm, base) != ("mime_lite", "sgd")
            found[f"{name}{short}"] = {"algorithm": algorithm, "base": base, "split": paired}
    return found


def _measure(order: Order, column: Column, asked: dict[str, Any], seeds: range) -> dict[str, Any]:
    task = tasks.get(column.name if column.name in PUBLISHED else order.task(column.name))
    setting = _within_budget(Setting(task=task.name, epochs=1, rounds=column.rounds, **asked), task)
    tuned = tune(order, dataclasses.replace(setting, rounds=column.tuning), {"eta": column.rates}, finer=False)
    trials = [repeat(order, setting, tuned.values, seed) for seed in seeds]
    return {
        "column": column.name,
        "task": task.name,
        "rounds": column.rounds,
        "rates": list(column.rates),
        "cohort": setting.cohort,
        "pairs": asked["split"],
        "eta": tuned.values["eta"],
        "at_edge": tuned.at_edge,
        "tried": tuned.tried,
        "accuracy": [None if trial.lost(column.rounds) else curve(trial, [column.rounds])[0] for trial in trials],
    }


def _within_budget(setting: Setting, task: Task) -> Setting:
    """The setting with as many clients as the task's budget of model-sizes allows."""
    algorithm = recipes.algorithm(recipes.resolved(setting, task))
    model = jax.eval_shape(task.problem().init, jax.random.key(0))
    units = cohort_for_budget(algorithm, model, task.budget)
    return dataclasses.replace(setting, cohort=2 * units if setting.split else units)
