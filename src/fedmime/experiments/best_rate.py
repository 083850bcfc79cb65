"""A method at the best of a few rates, with an aggregator on the way of its messages; runs are kept one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedmime.aggregation import Aggregation
from fedmime.errors import Diverged
from fedmime.experiments import grid as grids
from fedmime.experiments import train
from fedmime.experiments.ablation import first
from fedmime.experiments.reproduce_order import Order, array
from fedmime.experiments.setting import Setting, plain
from fedmime.experiments.sweep_trial import SMOOTHED
from fedmime.experiments.train import Prepared
from fedmime.runs import identity

_FORMAT = 1  # of what is kept on disk


def at_best_rate(
    order: Order,
    setting: Setting,
    rates: Sequence[float],
    seeds: Sequence[int],
    aggregation: Aggregation | None,
    tick: Callable[[], None],
    deciding: int | None = None,
) -> dict[str, Any]:
    """A method at the rate with the highest mean score, the mean accuracy of the last three evaluations.

    Args:
        setting: of the method; its rate and seed are replaced.
        tick: called after every run that is not known yet.
        deciding: how many of the seeds decide about the rate; the others run at the best one only. By default all.

    Returns:
        The rate and all rates tried; after which rounds the model was evaluated; by seed, the accuracies there and the
        score; and what all seeds share: the bytes sent by then, and ε after the last round.
    """

    def runs(eta: float, some: Sequence[int]) -> list[dict[str, Any]]:
        return [_measured(order, setting, eta, seed, aggregation, tick) for seed in some]

    scores = {eta: [_score(run["accuracy"]) for run in runs(eta, seeds[:deciding])] for eta in rates}
    best = max(rates, key=lambda eta: min(scores[eta]) >= 0 and float(np.mean(scores[eta])))
    chosen = runs(best, seeds)
    known = next((run for run in chosen if run["after"]), chosen[0])
    after = known["after"]
    curves = [run["accuracy"] or [None] * len(after) for run in chosen]
    return {
        "eta": best,
        "at_edge": bool(grids.edges({"eta": rates}, {"eta": best})),
        "tried": [{"eta": eta, "score": _mean(scores[eta])} for eta in rates],
        "after": after,
        "accuracy": curves,
        "score": [_score(run["accuracy"]) if run["accuracy"] else None for run in chosen],
        "bytes": np.mean([run["bytes"] for run in chosen if run["bytes"]] or [[]], axis=0).tolist(),
        "epsilon": known["epsilon"],
    }


def rounds_to(row: dict[str, Any], target: float) -> int | None:
    """After how many rounds the mean over seeds first reaches an accuracy."""
    return first(np.asarray(row["after"]), array(row["accuracy"]).mean(axis=0), target) if row["after"] else None


def _measured(
    order: Order, setting: Setting, eta: float, seed: int, aggregation: Aggregation | None, tick: Callable[[], None]
) -> dict[str, Any]:
    prepared = train.prepare(dataclasses.replace(setting, eta=eta, seed=seed, drift=False), order.data_dir)
    facts = {"messages": _FORMAT, "setting": plain(prepared.setting), "aggregation": identity.describe(aggregation)}
    facts["data"] = identity.data(prepared.population)

    def compute() -> dict[str, Any]:
        found = _run(dataclasses.replace(prepared, aggregation=aggregation))
        tick()
        return found

    return order.kept(facts, compute)


def _run(prepared: Prepared) -> dict[str, Any]:
    try:
        history = train.run(prepared).history
    except Diverged:
        return {"after": [], "accuracy": [], "bytes": [], "epsilon": None}
    there = np.flatnonzero(np.isfinite(history["test_accuracy"]))
    return {
        "after": (history["round"][there] + 1).tolist(),
        "accuracy": history["test_accuracy"][there].tolist(),
        "bytes": history["bytes_total"][there].tolist(),
        "epsilon": float(history["epsilon"][-1]) if "epsilon" in history else None,
    }


def _score(accuracy: list[float]) -> float:
    """Below every other if the run diverged."""
    return float(np.mean(accuracy[-SMOOTHED:])) if accuracy else -1.0


def _mean(scores: list[float]) -> float | None:
    return None if min(scores) < 0 else float(np.mean(scores))
