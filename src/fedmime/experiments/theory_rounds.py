r"""Theorem 2 measured: rounds to $\|\nabla f\|^2 \le \epsilon$ as δ, K and the cohort change at L = 1.

Every method is tuned on the same grid of client rates, those with momentum also over a, and counts with the member
that arrives first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedmime import algorithms, optimizers
from fedmime.algorithms.algorithm import Algorithm
from fedmime.experiments.theory_landscape import landscape
from fedmime.experiments.theory_loop import rounds_to, steady

EPS, COHORT = 2e-4, 10
Make = Callable[[float, float], Algorithm]
METHODS: dict[str, tuple[Make, bool]] = {  # by rate and a; whether a matters
    "MimeMVR": (lambda eta, a: algorithms.mime_mvr(eta, 1 - a), True),
    "MimeLiteMVR": (lambda eta, a: algorithms.mime_lite_mvr(eta, 1 - a), True),
    "Server-only MVR": (lambda eta, a: algorithms.server_only_mvr(eta, 1 - a), True),
    "Mime SGD": (lambda eta, _: algorithms.mime(optimizers.sgd(), eta), False),
    "FedAvg": (lambda eta, _: algorithms.fedavg(eta), False),
}


class Effort(NamedTuple):
    """How much is computed."""

    rates: tuple[float, ...]
    a: tuple[float, ...]
    seeds: int
    most: int  # rounds before a method counts as not arriving


def tuned(method: str, delta: float, bend: float, K: int, S: int, effort: Effort, **options: Any) -> dict[str, Any]:
    """Rounds of a method with its best rate on one problem."""
    make, momentum = METHODS[method]
    grid = [(eta, a) for eta in effort.rates for a in (effort.a if momentum else effort.a[:1])]
    land = landscape(delta, bend=bend, **options)
    best = rounds_to([make(eta, a) for eta, a in grid], land, EPS, S, K, effort.seeds, effort.most)
    eta, a = grid[best.member]
    return {
        "method": method,
        "delta": delta,
        "K": K,
        "S": S,
        "rounds": best.rounds,
        "eta": eta,
        "a": a if momentum else None,
        "at_edge": eta in (effort.rates[0], effort.rates[-1]),
    }


def direction_errors(cohorts: Sequence[int], rounds: int, seeds: int) -> list[dict[str, Any]]:
    r"""Mean of $\|d - \nabla f(y)\|^2$ over local steps: the lemmas bound it by $2G^2/S$ and by $2G^2 + \sigma^2$."""
    land, K, eta = landscape(0.01, G2=1.0, sigma2=1.0), 10, 0.01
    found = []
    for method, make in (("Mime", algorithms.mime), ("MimeLite", algorithms.mime_lite)):
        for S in cohorts:
            seen = steady(make(optimizers.sgd(), eta), land, S, K, seeds, rounds)
            bound = 2 * 1.0 / S if method == "Mime" else 2 * 1.0 + 1.0
            drifted = 2 * 0.01**2 * seen.drift
            found.append({"method": method, "S": S, "error": seen.error, "bound": bound + drifted})
    return found
