"""One round from the same model with ever more local steps: what the server gains."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fedmime.engine import simulate
from fedmime.engine.evaluate import evaluate
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


def losses(prepared: Prepared, x: Params, rates: tuple[float, ...], marks: tuple[int, ...], cohorts: int) -> Any:
    """The training loss after one round of K local steps from x: for every method, rate, cohort and K."""
    pool = prepared.population.pool()

    def after(asked: dict[str, Any], eta: float, seed: int, steps: int) -> float | None:
        setting = dataclasses.replace(prepared.setting, eta=eta, **asked)
        algorithm = recipes.algorithm(setting)
        rounds = algorithm.gradient_rounds + 1
        assert setting.cohort is not None
        run = simulate(
            algorithm, prepared.problem, prepared.population, rounds, setting.cohort, setting.batch,
            steps=steps, seed=seed, initial=x, evaluate_every=rounds + 1,
        )  # fmt: skip
        loss = evaluate(prepared.problem, run.params, pool)["loss"]
        return loss if np.isfinite(loss) else None

    found = {
        name: [[[after(asked, eta, seed, K) for K in marks] for seed in range(cohorts)] for eta in rates]
        for name, asked in METHODS.items()
    }
    return {"before": evaluate(prepared.problem, x, pool)["loss"], "losses": found}
