"""Populations made of others: columns computed when a client is read, large clients capped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from fedmime.data.population import Columns, Field, Population, describe
from fedmime.errors import ClientError, ConfigError, DataError
from fedmime.randomness import generator

_log = logging.getLogger(__name__)


def mapped(
    population: Population,
    name: str,
    fields: Mapping[str, Field],
    function: Callable[[Columns, str], Columns],
    recipe: str,
    test: Columns | Callable[[], Columns] | None = None,
    test_clients: Population | None = None,
) -> Population:
    """The same clients with other columns: `function(columns, where)` runs on each client as it is read.

    The number of examples stays; `recipe` names the function and its arguments, for the identity.
    """

    def read(index: int) -> Columns:
        columns = population.client_at(index)
        try:
            return function(columns, f"{population.name}: client {population.ids[index]!r}")
        except DataError as error:
            raise ClientError(str(error)) from None

    identity = lambda: describe(recipe, population.identity(), test_clients and test_clients.identity())
    return Population(
        name,
        population.ids,
        population.sizes,
        fields,
        read,
        identity=identity,
        test=test,
        test_clients=test_clients,
        check=partial(_check, population),
    )


def capped(population: Population, examples: int, sample: int | None = None, seed: int = 0) -> Population:
    """The same clients with at most their first `examples`, and at most `sample` of those, drawn once per client.

    One client with a hundred times the usual data would otherwise decide how much memory a round takes.
    """
    for label, value in (("examples", examples), ("sample", sample)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"capped: {label} must be a positive integer, got {value!r}")
    limit = examples if sample is None else min(examples, sample)
    cut = int((population.sizes > limit).sum())
    if cut:
        _log.warning("%s: %d of %d clients capped at %d examples", population.name, cut, len(population), limit)

    def read(index: int) -> Columns:
        columns = population.client_at(index)
        size = min(int(population.sizes[index]), examples)
        if sample is None or size <= sample:
            return {name: column[:size] for name, column in columns.items()}
        kept = np.sort(generator(seed, index, stream=2).permutation(size)[:sample])
        return {name: column[kept] for name, column in columns.items()}

    return Population(
        population.name,
        population.ids,
        np.minimum(population.sizes, limit),
        population.fields,
        read,
        identity=lambda: describe("capped", examples, sample, seed, population.identity()),
        test=(lambda: population.test or {}) if population.has_own_test else None,
        test_clients=population.test_clients,
        check=partial(_check, population),
    )


def _check(population: Population) -> None:
    """Check a population that another one reads from; unlike its own function, it can be sent to other processes."""
    population.check()
