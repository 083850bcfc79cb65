"""`reproduce steps`: how many local steps help, in one round and over long runs with a single local epoch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from fedmime import backends
from fedmime.engine.metrics import mean_metrics
from fedmime.experiments import ablation, train
from fedmime.experiments.reproduce_order import Order
from fedmime.experiments.setting import Setting
from fedmime.experiments.steps_path import errors
from fedmime.experiments.steps_round import METHODS, losses
from fedmime.runs import identity

_FORMAT = 1  # of what is kept on disk


class Scale(NamedTuple):
    """What is run at one scale."""

    before: int  # rounds of FedAvg that lead to the model where all start
    eta: float  # their rate
    rates: tuple[float, ...]
    marks: tuple[int, ...]  # local steps
    cohorts: int  # that a round is repeated with
    clients: int  # whose directions are followed
    runs: ablation.Scale  # with one local epoch


_RATES, _MARKS = (0.3, 0.1, 0.03), (1, 2, 4, 7, 14, 28, 56, 100, 140)
_FEW = ("Mime", "MimeLite", "FedAvg", "FedAvg, server rate 10", "FedAvg, β = 0")
_LIGHT = ablation.SCALES["small"].rates
SCALES = {
    "full": Scale(50, 0.1, _RATES, _MARKS, 10, 50, ablation.Scale(1000, 1000, 20, 1, 10, 3, True, True, _FEW, _LIGHT)),
    "small": Scale(50, 0.1, _RATES, _MARKS, 5, 20, ablation.Scale(1000, 400, 20, 1, 10, 3, True, False, _FEW, _LIGHT)),
    "smoke": Scale(2, 0.1, (0.1,), (1, 4), 2, 3, ablation.Scale(4, 2, 5, 1, 2, 2, False, False, _FEW, (1.0, 0.1))),
}


def run(order: Order) -> dict[str, Any]:
    """One round from the same model, the clients' directions in it, and the long runs."""
    scale = SCALES[order.scale]
    setting = Setting(order.task("mlp"), "fedavg", "sgd", eta=scale.eta, cohort=scale.runs.cohort, rounds=scale.before)
    prepared = train.prepare(setting, order.data_dir)
    asked = {name: value for name, value in scale._asdict().items() if name != "runs"}
    facts = asked | {"steps": _FORMAT, "task": setting.task, "cohort": setting.cohort}
    once = _once(order, prepared, scale, facts | {"data": identity.data(prepared.population)})
    return {"setting": facts, **once, "runs": ablation.tuned_and_repeated(order, scale.runs)}


def _once(order: Order, prepared: train.Prepared, scale: Scale, facts: dict[str, Any]) -> dict[str, Any]:
    """What happens within a round, kept piece by piece."""
    start = functools.cache(lambda: train.run(prepared).params)
    marks = scale.marks

    def gained(method: str, eta: float) -> Any:
        tick = order.counter(f"one round of {method}, η = {eta:g}", scale.cohorts * len(marks))
        return losses(prepared, start(), method, eta, marks, scale.cohorts, tick)

    def followed(eta: float) -> Any:
        tick = order.counter(f"directions at η = {eta:g}", 2 * scale.clients)
        return errors(prepared, start(), eta, marks, scale.clients, tick)

    def kept(compute: Callable[..., Any], *asked: Any) -> Any:
        return order.kept(facts | {"piece": [compute.__name__, *asked]}, lambda: compute(*asked))

    def before() -> float:
        model = start()
        local = backends.local().start(prepared.problem, model)
        return mean_metrics(local, model, prepared.population.pool())["loss"]

    return {
        "before": kept(before),
        "round": {method: [kept(gained, method, eta) for eta in scale.rates] for method in METHODS},
        "path": [kept(followed, eta) for eta in scale.rates],
    }
