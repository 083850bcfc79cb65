"""`reproduce accuracies`: three methods with four base optimizers, all with the same communication a round."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax

from fedmime.aggregation.communication import cohort_for_budget
from fedmime.errors import ConfigError
from fedmime.experiments import grid as grids
from fedmime.experiments import recipes, tasks
from fedmime.experiments.reproduce_order import Order, curve, repeat, tune
from fedmime.experiments.setting import Setting
from fedmime.experiments.task import Task
from fedmime.validation import choice

BASES = {"SGD": "sgd", "Mom": "momentum", "Adam": "adam", "Adagrad": "adagrad"}
ALGORITHMS = {"FedAvg": "fedavg", "MimeLite": "mime_lite", "Mime": "mime"}
PAPER = {  # per cent, in the order of the methods: FedAvg, MimeLite, Mime with each base
    "logistic": (66.8, 66.8, 67.4, 67.4, 67.4, 67.5, 67.3, 68.0, 68.0, 67.6, 66.6, 67.4),
    "cnn": (85.8, 85.8, 85.3, 85.7, 86.0, 85.9, 85.9, 86.4, 86.6, 86.3, 85.5, 86.3),
    "shakespeare": (56.7, 56.7, 56.1, 55.4, 49.8, 53.6, 18.5, 54.0, 54.1, 55.5, 56.8, 57.1),
    "stackoverflow": (23.8, 23.8, 12.5, 22.2, 19.9, 19.3, 3.2, 21.5, 22.8, 24.2, 23.8, 14.7),
}
LOOKAHEAD = {"base": "adam", "split": True, "apply": "lookahead"}
BESIDE = {  # rows that the paper's table does not have
    # Momentum (1-β)g + βm at server rate 1 starts 1/(1-β) = 10 times slower than SGD.
    "FedAvgMom, server rate 10": {"algorithm": "fedavg", "base": "momentum", "split": False, "eta_server": 10.0},
    # With frozen statistics Adam divides by ε alone where the server's v is 0: at words that no gradient has met yet.
    "MimeLiteAdam, lookahead": {"algorithm": "mime_lite", **LOOKAHEAD},
    "MimeAdam, lookahead": {"algorithm": "mime", **LOOKAHEAD},
}
PUBLISHED = {"shakespeare": "shakespeare", "stackoverflow": "stackoverflow-1000"}  # columns that need published files
BEYOND = 4  # rates that may be tried outside of the grid, so that the best one lies between two others


class Column(NamedTuple):
    """A data set and model, and how long it is trained."""

    name: str
    rounds: int
    rates: tuple[float, ...]
    bases: tuple[str, ...] = tuple(BASES)


class Scale(NamedTuple):
    """What is run at one scale."""

    columns: tuple[Column, ...]
    seeds: int


_LIGHT = tuple(grids.LIGHT["eta"])
_SMALL = {"logistic": 300, "cnn": 200, "shakespeare": 200, "stackoverflow": 100}  # more than a day on two cores
_EVALUATIONS = 8  # in the course of a run; a rate is judged by the mean of the last three
SCALES = {
    "full": Scale(tuple(Column(name, 1000, _LIGHT) for name in PAPER), 3),
    "small": Scale(tuple(Column(name, rounds, _LIGHT) for name, rounds in _SMALL.items()), 3),
    "smoke": Scale((Column("logistic", 4, (1.0, 0.1), ("Adam",)),), 1),
}


def run(order: Order) -> dict[str, Any]:
    """Tune every method on every column at the first seed and repeat it with every seed."""
    scale = SCALES[order.scale]
    seeds = range(scale.seeds if order.seeds is None else order.seeds)
    rows: list[dict[str, Any]] = []
    for column in columns(order, scale):
        paper = dict(zip(methods(), PAPER[column.name], strict=True))
        bases = [BASES[base] for base in column.bases]
        for name, asked in (methods() | BESIDE).items():
            if asked["base"] in bases:
                found = rows[-1] if name == "MimeLiteSGD" else measure(order, column, asked, seeds)
                told = paper[name] / 100 if name in paper else None
                rows.append(found | {"method": name, "paper": told})
    return {"setting": {"scale": order.scale, "seeds": len(seeds)}, "rows": rows}


def columns(order: Order, scale: Scale) -> list[Column]:
    """The columns that the order asks for, each with its share of the rounds."""
    names = tuple(c.name for c in scale.columns if c.name not in PUBLISHED or order.data_dir is not None)
    asked = names if order.columns is None else order.columns
    for name in asked:
        if name in PUBLISHED and name not in names:
            raise ConfigError(f"reproduce: column {name!r} needs the published files; pass data_dir")
        choice("reproduce", "columns", name, names)
    found = [column for column in scale.columns if column.name in asked]
    return [column._replace(rounds=max(4, round(column.rounds * order.share))) for column in found]


def methods() -> dict[str, dict[str, Any]]:
    """All twelve, in the order of the paper's table. MimeLiteSGD tracks nothing: it is FedAvgSGD, the row before."""
    found = {}
    for short, base in BASES.items():
        for name, algorithm in ALGORITHMS.items():
            paired = algorithm != "fedavg" and (algorithm, base) != ("mime_lite", "sgd")
            found[f"{name}{short}"] = {"algorithm": algorithm, "base": base, "split": paired}
    return found


def measure(order: Order, column: Column, asked: dict[str, Any], seeds: range) -> dict[str, Any]:
    """Tune a method on a column at the first seed and repeat it with every seed, within the task's budget."""
    task = tasks.get(PUBLISHED.get(column.name) or order.task(column.name))
    every = max(1, column.rounds // _EVALUATIONS)
    setting = Setting(task=task.name, epochs=1, rounds=column.rounds, evaluate_every=every, **asked)
    setting = _within_budget(setting, task)
    tuned = tune(order, setting, {"eta": column.rates}, finer=False, beyond=BEYOND)
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
