"""`reproduce privacy`: accuracy against ε of client-level differential privacy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedmime.aggregation import gaussian
from fedmime.aggregation.accounting import Sampling
from fedmime.aggregation.privacy import Gaussian
from fedmime.experiments import train
from fedmime.experiments.best_rate import at_best_rate
from fedmime.experiments.compression import METHODS
from fedmime.experiments.reproduce_order import Order
from fedmime.experiments.setting import Setting, Taking

RELEASES = {"FedAvg": 1, "MimeLite": 2, "Mime": 2}  # of a cohort in a round: the mean update, and c
DELTA = 1e-5
QUANTILE = 0.5  # half of the messages are clipped; the norms find their way there and need not be searched for
FIRST_NORMS = {"clip": 2.0, "gradient_clip": 1.0}  # from which they start
QUANTILE_RATE = 0.5  # so that they are there within a few of the rounds


class Scale(NamedTuple):
    """What is run at one scale."""

    rounds: int
    cohort: int  # on average
    steps: int
    batch: int
    every: int
    seeds: int
    epsilons: tuple[float | None, ...]  # None is without privacy
    rates: tuple[float, ...]  # of which the first seed decides
    methods: tuple[str, ...]


_ALL = tuple(METHODS)
SCALES = {
    "full": Scale(1000, 100, 10, 20, 50, 3, (0.5, 1.0, 2.0, 4.0, 8.0, None), (10.0, 3.16, 1.0, 0.316, 0.1), _ALL),
    "small": Scale(50, 100, 5, 20, 10, 3, (1.0, 2.0, 8.0, None), (10.0, 3.16, 1.0, 0.316), _ALL),
    "smoke": Scale(3, 10, 2, 10, 1, 2, (8.0, None), (0.316,), ("FedAvg", "Mime")),
}


def run(order: Order) -> dict[str, Any]:
    """Every method at every ε, each at its own best rate, all with the same seeds and cohorts."""
    scale = SCALES[order.scale]
    seeds = range(scale.seeds if order.seeds is None else order.seeds)
    task, rows = order.task("logistic"), []
    population = train.prepare(_setting(task, scale, scale.methods[0]), order.data_dir).population
    sampling = Sampling("poisson", scale.cohort, int(np.count_nonzero(population.sizes)))
    for method in scale.methods:
        tick = order.counter(f"{method}, private", len(scale.epsilons) * (len(scale.rates) + len(seeds) - 1))
        for epsilon in scale.epsilons:
            noise = None if epsilon is None else mechanism(epsilon, sampling, scale.rounds, RELEASES[method])
            found = at_best_rate(order, _setting(task, scale, method), scale.rates, seeds, noise, tick, deciding=1)
            z = None if noise is None else noise.noise_multiplier
            rows.append({"method": method, "asked": epsilon, "noise_multiplier": z} | found)
    facts = {name: value for name, value in scale._asdict().items() if name not in ("methods", "seeds")}
    facts |= {"scale": order.scale, "task": task, "clients": sampling.population, "seeds": len(seeds)}
    return {"setting": facts | {"delta": DELTA, "quantile": QUANTILE}, "rows": rows}


def mechanism(epsilon: float, sampling: Sampling, rounds: int, releases: int) -> Gaussian:
    """The noise with which so many rounds end at ε. `simulate` would find the same; here all seeds share it."""
    asked = gaussian(**FIRST_NORMS, target_epsilon=epsilon, delta=DELTA, quantile=QUANTILE, quantile_rate=QUANTILE_RATE)
    return asked.resolve(sampling, rounds, releases)


def _setting(task: str, scale: Scale, method: str) -> Setting:
    return Setting(
        task=task,
        rounds=scale.rounds,
        cohort=scale.cohort,
        steps=scale.steps,
        batch=scale.batch,
        evaluate_every=scale.every,
        weights="uniform",  # one client must not count for more than another
        participation=Taking(sampler="poisson", minimum=0.0),
        **METHODS[method],
    )
