"""Who takes part in a round: pure functions of seed and round, without memory of earlier rounds.

Each gives positions in the population. The generator is Philox keyed by (seed, round), a stream per purpose.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedmime.errors import ConfigError
from fedmime.randomness import generator

_COHORT, _ZONES, _AWAKE, _DROPPED, _ARRIVAL = range(10, 15)  # streams
_ZONE_HOURS = 24


def uniform(n: int, cohort_size: int, seed: int, round: int) -> np.ndarray:  # noqa: A002
    """`cohort_size` different clients of `n`, all equally likely."""
    _check(n, cohort_size)
    return generator(seed, round, _COHORT).choice(n, cohort_size, replace=False)


def by_size(sizes: np.ndarray, cohort_size: int, seed: int, round: int) -> np.ndarray:  # noqa: A002
    """Different clients, drawn one after another with chances proportional to their examples.

    Exponential races: client i finishes at time `Exp(1) / n_i`, the first `cohort_size` win. Clients without examples
    never do.
    """
    sizes = np.asarray(sizes)
    eligible = np.flatnonzero(sizes > 0)
    _check(len(eligible), cohort_size)
    times = generator(seed, round, _COHORT).standard_exponential(len(sizes))[eligible] / sizes[eligible]
    winners = np.argpartition(times, cohort_size - 1)[:cohort_size]
    return eligible[winners[np.argsort(times[winners])]]


def with_replacement(
    n: int,
    cohort_size: int,
    seed: int,
    round: int,  # noqa: A002
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """`cohort_size` independent draws; a client may appear twice. `weights` are relative chances."""
    _check(n, 1)
    if cohort_size < 1:
        raise ConfigError(f"cohort_size must be a positive integer, got {cohort_size!r}")
    rng = generator(seed, round, _COHORT)
    if weights is None:
        return rng.integers(0, n, cohort_size)
    chances = np.asarray(weights, np.float64)
    if chances.shape != (n,) or not (np.isfinite(chances).all() and (chances >= 0).all() and chances.sum() > 0):
        raise ConfigError(
            f"weights must be {n} finite numbers, none negative and not all zero, got shape {chances.shape}"
        )
    return np.searchsorted(np.cumsum(chances) / chances.sum(), rng.random(cohort_size), side="right").clip(max=n - 1)


def availability(
    n: int,
    seed: int,
    round: int,  # noqa: A002
    rounds_per_day: float = 24.0,
    low: float = 0.05,
    high: float = 0.5,
    peak_hour: float = 2.0,
) -> np.ndarray:
    """The chance that each client is reachable in a round: idle and charging at night, busy by day.

    A client keeps its time zone for the whole run. The day curve is a cosine between `low` and `high` that peaks at
    `peak_hour` local time; a round lasts `24 / rounds_per_day` hours.
    """
    if not 0 <= low <= high <= 1:
        raise ConfigError(f"availability needs 0 <= low <= high <= 1, got low={low!r}, high={high!r}")
    if not 0 < rounds_per_day < math.inf:
        raise ConfigError(f"rounds_per_day must be positive and finite, got {rounds_per_day!r}")
    hour = round * 24.0 / rounds_per_day + time_zones(n, seed)
    return low + (high - low) * (1 + np.cos(2 * np.pi * (hour - peak_hour) / 24)) / 2


def time_zones(n: int, seed: int) -> np.ndarray:
    """The hours by which each client's clock is ahead: one of 24, all equally common."""
    return generator(seed, 0, _ZONES).integers(0, _ZONE_HOURS, n)


def diurnal(
    n: int,
    cohort_size: int,
    seed: int,
    round: int,  # noqa: A002
    rounds_per_day: float = 24.0,
    low: float = 0.05,
    high: float = 0.5,
    peak_hour: float = 2.0,
) -> np.ndarray:
    """Different clients of those reachable in this round (see `availability`); fewer, if fewer are."""
    _check(n, cohort_size)
    chances = availability(n, seed, round, rounds_per_day, low, high, peak_hour)
    awake = np.flatnonzero(generator(seed, round, _AWAKE).random(n) < chances)
    return generator(seed, round, _COHORT).permutation(awake)[:cohort_size]


def over_selected(target: int, factor: float = 1.3) -> int:
    """How many clients to ask so that `target` of them report."""
    if target < 1 or not 1 <= factor < math.inf:
        raise ConfigError(f"over-selection needs a positive target and factor >= 1, got {target!r} and {factor!r}")
    return math.ceil(round(target * factor, 9))  # 10 * 1.1 is 11, not 11.000000000000002


class Reports(NamedTuple):
    """What became of the clients asked: the first to report, those that came too late, those that never did."""

    kept: np.ndarray
    late: np.ndarray
    dropped: np.ndarray


def reports(
    asked: np.ndarray,
    target: int,
    rate: float,
    seed: int,
    round: int,  # noqa: A002
) -> Reports:
    """Drop each client with chance `rate`; of the rest the first `target` to arrive are kept.

    A client's luck depends on who it is and on the round, not on who else was asked.
    """
    if not 0 <= rate <= 1:
        raise ConfigError(f"drop-out rate must lie in [0, 1], got {rate!r}")
    asked = np.asarray(asked, np.int64)
    highest = int(asked.max(initial=-1)) + 1
    lost = generator(seed, round, _DROPPED).random(highest)[asked] < rate
    arrival = generator(seed, round, _ARRIVAL).random(highest)[asked]
    there = asked[~lost][np.argsort(arrival[~lost], kind="stable")]
    return Reports(there[:target], there[target:], asked[lost])


def _check(n: int, cohort_size: int) -> None:
    if cohort_size < 1:
        raise ConfigError(f"cohort_size must be a positive integer, got {cohort_size!r}")
    if cohort_size > n:
        raise ConfigError(
            f"cohort_size={cohort_size} exceeds the population of {n} clients; lower it or sample with replacement"
        )
