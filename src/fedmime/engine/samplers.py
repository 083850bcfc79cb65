"""Samplers: which clients of the population take part in a round.

Every named sampler is a pure function of the seed and the round, without memory of earlier rounds. So any round can be
drawn again by itself, on any machine, which makes resumed runs and prefetching exact. Random numbers come from Philox
keyed by (seed, round), with one stream per purpose, so that for example turning drop-out on does not change which
clients are asked. All functions return positions in the population, int64.

A sampler of your own (`Sampler`) is also told the clients' last losses, which a run saves; `power_of_choice` is one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedmime.errors import ConfigError
from fedmime.randomness import generator

_COHORT, _ZONES, _AWAKE, _DROPPED, _ARRIVAL = range(10, 15)  # random streams, one for each purpose
_ZONE_HOURS = 24

__all__ = [
    "PowerOfChoice",
    "Reports",
    "Sampler",
    "availability",
    "by_size",
    "diurnal",
    "over_selected",
    "poisson",
    "power_of_choice",
    "reports",
    "time_zones",
    "uniform",
    "with_replacement",
]

Sampler = Callable[[int, np.ndarray, np.ndarray, np.random.Generator], Any]
"""A user's sampler: `sampler(round, sizes, losses, rng)` returns different positions in order of preference.

`sizes` are the numbers of examples [clients] and `losses` what is known of each client's loss [clients], float32: the
mean of its mini-batch losses before each local step, of the last round that the server accepted its reply in; NaN for
clients that have not trained yet. The first `cohort_size` clients that it names are asked, or all of fewer. `rng` is
new in every round, from the seed of the run; with random numbers from elsewhere a run could not be repeated or resumed.
"""


def uniform(n: int, cohort_size: int, seed: int, round: int) -> np.ndarray:  # noqa: A002
    """Draw `cohort_size` different clients out of `n`, all equally likely.

    Returns:
        Positions in the population [cohort_size], in random order.
    """
    _check(n, cohort_size)
    return generator(seed, round, _COHORT).choice(n, cohort_size, replace=False)


def poisson(n: int, cohort_size: int, seed: int, round: int) -> np.ndarray:  # noqa: A002
    """Draw each of `n` clients independently of all others with probability `cohort_size / n`.

    Privacy accounting is tightest for such cohorts. Their size varies around `cohort_size` with a standard deviation of
    at most its square root, and a cohort may be empty.

    Args:
        n: number of clients in the population.
        cohort_size: the expected number of clients; the whole population is drawn if it is `n`.

    Returns:
        Positions in the population, in random order.
    """
    _check(n, cohort_size)
    rng = generator(seed, round, _COHORT)
    return rng.permutation(np.flatnonzero(rng.random(n) < cohort_size / n))


def by_size(sizes: np.ndarray, cohort_size: int, seed: int, round: int) -> np.ndarray:  # noqa: A002
    """Draw different clients one after another, with chances proportional to their numbers of examples.

    The method is an exponential race: client i finishes at time `Exp(1) / n_i`, and the first `cohort_size` to finish
    are drawn. It is equivalent to weighted sampling without replacement and needs one pass over the population. A
    client without examples never finishes.

    Args:
        sizes: n_i, the number of examples of each client [clients].
        cohort_size: clients to draw; at most as many as have examples.

    Returns:
        Positions in the population [cohort_size], in the order in which they were drawn.
    """
    return _race(np.asarray(sizes), cohort_size, generator(seed, round, _COHORT))


def _race(sizes: np.ndarray, cohort_size: int, rng: np.random.Generator) -> np.ndarray:
    eligible = np.flatnonzero(sizes > 0)
    _check(len(eligible), cohort_size)
    times = rng.standard_exponential(len(sizes))[eligible] / sizes[eligible]
    winners = np.argpartition(times, cohort_size - 1)[:cohort_size]
    return eligible[winners[np.argsort(times[winners])]]


def drawn_by(sampler: Sampler, sizes: np.ndarray, losses: np.ndarray, seed: int, round: int) -> np.ndarray:  # noqa: A002
    """The clients that a user's sampler names, in its order; what is no such list is refused.

    Args:
        sizes: n_i, the number of examples of each client [clients].
        losses: the clients' last losses [clients], NaN where there is none.
    """
    rng, given = generator(seed, round, _COHORT), (sizes.copy(), losses.copy())  # it cannot change the run's own
    answer = np.asarray(sampler(round, *given, rng))
    where = f"participation: sampler in round {round}"
    if answer.ndim != 1 or (answer.size and answer.dtype.kind not in "iu"):
        raise ConfigError(f"{where} must return positions of clients [cohort], got {answer.dtype} {list(answer.shape)}")
    drawn = answer.astype(np.int64)
    outside = drawn[(drawn < 0) | (drawn >= len(sizes))]
    if len(outside):
        raise ConfigError(f"{where} drew client {outside[0]}; accepted are positions from 0 to {len(sizes) - 1}")
    values, times = np.unique(drawn, return_counts=True)
    if (times > 1).any():
        raise ConfigError(f"{where} drew client {values[times > 1][0]} twice; clients take part once")
    if not sizes[drawn].all():
        raise ConfigError(f"{where} drew client {drawn[sizes[drawn] == 0][0]}, which has no examples")
    return drawn


@dataclasses.dataclass(frozen=True)
class PowerOfChoice:
    """The sampler of `power_of_choice`."""

    candidates: int

    def __call__(self, round: int, sizes: np.ndarray, losses: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # noqa: A002
        drawn = _race(sizes, min(self.candidates, int(np.count_nonzero(sizes))), rng)
        known = np.where(np.isnan(losses[drawn]), np.inf, losses[drawn])
        return drawn[np.argsort(-known, kind="stable")]


def power_of_choice(candidates: int) -> PowerOfChoice:
    """Prefer clients with high losses: draw `candidates` with chances proportional to n_i, ask those of highest loss.

    This is the variant that the paper calls rpow-d: it compares the losses that candidates had when they last trained,
    and asks those who never did first, so that it needs no exchange with clients that are not asked. With as many
    candidates as the cohort has clients it is `"by_size"`. Favoured clients make the mean a biased one, on purpose; the
    paper averages with equal weights, `simulate(…, weights="uniform")`.

    Reference: Cho et al., 2020, Client Selection in Federated Learning, https://arxiv.org/abs/2010.01243
    """
    if isinstance(candidates, bool) or not isinstance(candidates, int | np.integer) or candidates < 1:
        raise ConfigError(f"power_of_choice: candidates must be a positive integer, got {candidates!r}")
    return PowerOfChoice(int(candidates))


def with_replacement(
    n: int,
    cohort_size: int,
    seed: int,
    round: int,  # noqa: A002
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Draw `cohort_size` clients independently, so that a client may appear more than once.

    Args:
        n: number of clients in the population.
        weights: relative chances [n], not negative and not all zero; by default all clients are equally likely.

    Returns:
        Positions in the population [cohort_size].
    """
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
    """The probability that each client can be reached in a round.

    Devices take part while they are idle and charging, which is at night. A client keeps its time zone for the whole
    run. The probability over a day is a cosine between `low` and `high`.

    Args:
        n: number of clients in the population.
        rounds_per_day: rounds in 24 hours: a round lasts `24 / rounds_per_day` hours.
        low: probability at the least favourable hour of the day.
        high: probability at the most favourable hour.
        peak_hour: that hour, in the client's local time.

    Returns:
        Probabilities [n].
    """
    if not 0 <= low <= high <= 1:
        raise ConfigError(f"availability needs 0 <= low <= high <= 1, got low={low!r}, high={high!r}")
    if not 0 < rounds_per_day < math.inf:
        raise ConfigError(f"rounds_per_day must be positive and finite, got {rounds_per_day!r}")
    hour = round * 24.0 / rounds_per_day + time_zones(n, seed)
    return low + (high - low) * (1 + np.cos(2 * np.pi * (hour - peak_hour) / 24)) / 2


def time_zones(n: int, seed: int) -> np.ndarray:
    """The hours by which each client's local time is ahead [n], drawn from 0, ..., 23 with equal chances."""
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
    """Draw different clients among those that can be reached in this round; `availability` explains the arguments.

    Returns:
        Positions in the population, `cohort_size` of them, or fewer if fewer clients can be reached.
    """
    _check(n, cohort_size)
    chances = availability(n, seed, round, rounds_per_day, low, high, peak_hour)
    awake = np.flatnonzero(generator(seed, round, _AWAKE).random(n) < chances)
    return generator(seed, round, _COHORT).permutation(awake)[:cohort_size]


def over_selected(target: int, factor: float = 1.3) -> int:
    """How many clients to ask so that `target` of them report, `factor` times as many.

    A deployment asks more clients than it needs, because some drop out; 1.3 is the factor of Bonawitz et al., 2019.
    """
    if target < 1 or not 1 <= factor < math.inf:
        raise ConfigError(f"over-selection needs a positive target and factor >= 1, got {target!r} and {factor!r}")
    return math.ceil(round(target * factor, 9))  # rounded first, because 10 * 1.1 is 11.000000000000002


class Reports(NamedTuple):
    """What became of the clients that were asked, as positions in the population.

    Attributes:
        in_time: the clients that reported in time, in order of arrival.
        late: clients that reported after enough others had; their work is discarded.
        dropped: clients that never reported.
    """

    in_time: np.ndarray
    late: np.ndarray
    dropped: np.ndarray


def reports(
    asked: np.ndarray,
    target: int,
    rate: float,
    seed: int,
    round: int,  # noqa: A002
) -> Reports:
    """Simulate drop-out with probability `rate`; of the clients that report, the first `target` are in time.

    The random numbers of a client depend on its position and the round, and not on who else was asked. So a larger
    cohort does not change whether a given client drops out.

    Args:
        asked: positions of the clients that were asked.
        target: how many reports the server waits for.
        rate: probability that a client never reports.
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
    """Refuse a cohort that is empty or larger than the population it is drawn from."""
    if cohort_size < 1:
        raise ConfigError(f"cohort_size must be a positive integer, got {cohort_size!r}")
    if cohort_size > n:
        raise ConfigError(
            f"cohort_size={cohort_size} exceeds the population of {n} clients; lower it or sample with replacement"
        )
