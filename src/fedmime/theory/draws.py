"""Clients drawn so that plain averages over the draws are unbiased for averages over the population."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmime.data import Population
from fedmime.errors import DataError
from fedmime.randomness import generator

Interval = tuple[float, float]

_RESAMPLES = 2000
_STREAM = 30  # apart from the random numbers of cohorts and mini-batches


class Draws(NamedTuple):
    """Different clients, the share of the draws that fell on each, and how a sample variance becomes unbiased."""

    positions: np.ndarray
    shares: np.ndarray  # sum to one
    bessel: float  # factor of the variance within the sample
    fraction: float  # of sampling error that is left: 0 when everybody was drawn
    size: int  # draws


def draw(population: Population, clients: int, weights: str, seed: int) -> Draws:
    """Draw clients for averages with weights n_i (`"examples"`) or equal ones (`"uniform"`).

    Everybody is taken, with exact weights, where the population has no more clients than asked for. Otherwise clients
    are drawn in proportion to n_i with replacement, or uniformly without: an average over draws has no bias, and the
    variance within the sample is corrected for the mean that was estimated from it.
    """
    there = np.flatnonzero(population.sizes)
    if not there.size:
        raise DataError("constants: no client of the population has an example")
    sizes = population.sizes[there].astype(float)
    if clients >= there.size:
        shares = sizes / sizes.sum() if weights == "examples" else np.full(there.size, 1 / there.size)
        return Draws(there, shares, 1.0, 0.0, there.size)
    random = generator(seed, 0, _STREAM)
    if weights == "examples":
        drawn, times = np.unique(random.choice(there, clients, p=sizes / sizes.sum()), return_counts=True)
        return Draws(drawn, times / clients, clients / max(clients - 1, 1), 1.0, clients)
    drawn = np.sort(random.choice(there, clients, replace=False))
    left = 1 - 1 / there.size
    equal = np.full(clients, 1 / clients)
    return Draws(drawn, equal, clients / max(clients - 1, 1) * left, 1 - clients / there.size, clients)


def average(values: np.ndarray, drawn: Draws, random: np.random.Generator) -> tuple[float, Interval]:
    """The mean over the draws and its interval, by resampling the draws."""
    mean = float(drawn.shares @ values)
    if not drawn.fraction or drawn.size < 2:
        return mean, (mean, mean)
    times = random.multinomial(drawn.size, drawn.shares, _RESAMPLES)
    spread = (times @ values / drawn.size - mean) * np.sqrt(drawn.fraction * drawn.size / (drawn.size - 1))
    low, high = np.quantile(spread, [0.025, 0.975])
    return mean, (max(mean + float(low), 0.0), mean + float(high))
