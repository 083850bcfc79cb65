"""One round from the same model with ever more local steps: what the server gains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmime import backends
from fedmime.engine import simulate
from fedmime.engine.metrics import mean_metrics
from fedmime.experiments import recipes
from fedmime.experiments.setting import Optimizer
from fedmime.experiments.train import Prepared
from fedmime.models.problem import Params

PRIMED = 20  # gradient-only rounds at x, after which momentum is its gradient but for 0.9²⁰ = 12 %
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": "fedavg", "base": "sgd"},
    "Mime, β = 0": {"algorithm": "mime", "base": "sgd"},
    "Mime, β = 0.9": {
        "algorithm": "mime",
        "base": "momentum",
        "optimizer": Optimizer(beta=0.9),
        "prime_rounds": PRIMED,
    },
}


def losses(
    prepared: Prepared,
    x: Params,
    method: str,
    eta: float,
    marks: tuple[int, ...],
    cohorts: int,
    tick: Callable[[], None],
) -> list[list[float | None]]:
    """The training loss after one round of K local steps from x: for every cohort and K."""
    pool = prepared.population.pool()
    local = backends.local().start(prepared.problem, x)
    setting = dataclasses.replace(prepared.setting, eta=eta, **METHODS[method])
    algorithm = recipes.algorithm(setting)
    rounds = algorithm.gradient_rounds + 1
    cohort = setting.cohort or 1

    def after(seed: int, steps: int) -> float | None:
        run = simulate(
            algorithm, prepared.problem, prepared.population, rounds, cohort, setting.batch,
            steps=steps, seed=seed, initial=x, evaluate_every=rounds + 1,
        )  # fmt: skip
        loss = mean_metrics(local, run.params, pool)["loss"]
        tick()
        return loss if np.isfinite(loss) else None

    return [[after(seed, K) for K in marks] for seed in range(cohorts)]
