"""`reproduce communication`: what a pair of clients costs, and the cohorts that a budget then allows."""

from __future__ import annotations

from typing import Any

import jax

from fedmime.aggregation.communication import cohort_for_budget, cost
from fedmime.experiments import recipes, tasks
from fedmime.experiments.reproduce_order import Order
from fedmime.experiments.setting import Setting

BUDGETS = {"EMNIST62": 40.0, "Shakespeare": 40.0, "StackOverflow": 100.0}
PAPER: dict[str, tuple[int, dict[str, int]]] = {  # model-sizes of a client or pair, and cohorts by data set
    "FedAvg": (2, {"EMNIST62": 20, "Shakespeare": 20, "StackOverflow": 50}),
    "MimeLiteMom": (5, {"EMNIST62": 8, "Shakespeare": 8, "StackOverflow": 20}),
    "MimeLiteAdagrad": (5, {"EMNIST62": 8, "Shakespeare": 8, "StackOverflow": 20}),
    "MimeLiteAdam": (6, {"EMNIST62": 6, "Shakespeare": 6, "StackOverflow": 16}),
    "MimeMom": (6, {"EMNIST62": 6, "Shakespeare": 6, "StackOverflow": 16}),
    "MimeAdagrad": (6, {"EMNIST62": 6, "Shakespeare": 6, "StackOverflow": 16}),
    "MimeAdam": (7, {"EMNIST62": 5, "Shakespeare": 5, "StackOverflow": 14}),
}
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": "fedavg", "base": "sgd"},
    "MimeLiteMom": {"algorithm": "mime_lite", "base": "momentum", "split": True},
    "MimeLiteAdagrad": {"algorithm": "mime_lite", "base": "adagrad", "split": True},
    "MimeLiteAdam": {"algorithm": "mime_lite", "base": "adam", "split": True},
    "MimeMom": {"algorithm": "mime", "base": "momentum", "split": True},
    "MimeAdagrad": {"algorithm": "mime", "base": "adagrad", "split": True},
    "MimeAdam": {"algorithm": "mime", "base": "adam", "split": True},
}


def run(order: Order) -> dict[str, Any]:
    """Count what the algorithms' messages contain; nothing is trained."""
    task = tasks.get("emnist-logistic")
    model = jax.eval_shape(task.problem().init, jax.random.key(0))
    rows = []
    for name, method in METHODS.items():
        algorithm = recipes.algorithm(recipes.resolved(Setting(task=task.name, **method), task))
        sizes, cohorts = PAPER[name]
        found = {place: cohort_for_budget(algorithm, model, budget) for place, budget in BUDGETS.items()}
        rows.append(
            {
                "method": name,
                "model_sizes": cost(algorithm, model).model_sizes,
                "paper_model_sizes": sizes,
                "cohorts": found,
                "paper_cohorts": cohorts,
            }
        )
    return {"scale": order.scale, "budgets": BUDGETS, "rows": rows}
