r"""How dense the vectors of a round of Mime with momentum are, at the model x that a short run leads to.

A client's mini-batch gradient $\nabla f_i(x; \zeta)$ is zero at the words that the mini-batch does not hold. The
server's momentum m, the cohort's gradient c and the correction $c - \nabla f_i(x; \zeta)$ are not: they hold the words
of others. All are measured at the first local step, where y = x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedmime.data import Population
from fedmime.data.views import mapped
from fedmime.experiments.sparsity_measures import effective_density, layers, nonzero_share, share_outside
from fedmime.models.problem import Params, Problem
from fedmime.optimizers import BaseOptimizer
from fedmime.randomness import generator
from fedmime.theory.derivatives import programs, rows, still
from fedmime.vector import Vector

MODEL = "model"  # the name of the whole beside its layers
_STREAM = 43  # of cohorts and mini-batches
Columns = dict[str, np.ndarray]


class Gradients(NamedTuple):
    """What a client of a cohort contributes, as flat vectors [d]."""

    batch: np.ndarray
    r"""$\nabla f_i(x; \zeta)$ of one mini-batch."""
    support: np.ndarray
    r"""Where its full gradient $\nabla f_i(x)$ differs from zero."""


class Draws(NamedTuple):
    """The cohorts that densities are means over; clients are drawn uniformly among those that fill a mini-batch."""

    cohorts: int
    cohort: int  # clients
    batch: int
    seed: int


def densities(
    problem: Problem,
    population: Population,
    x: Params,
    m: Params,
    base: BaseOptimizer,
    draws: Draws,
    tick: Callable[[], None],
) -> dict[str, Any]:
    """The densities at x, means over one mini-batch of every client: by layer, and of the whole model.

    Args:
        m: the server's momentum after the run that led to x.
        base: momentum, whose U is applied to it.
        tick: called after every client.

    Returns:
        For the model and each of its layers: its size; the share of non-zero entries and the effective density of
        every vector; the share of each method's squared step that falls where the mini-batch's gradient is zero, and
        where the client's full gradient is.
    """
    momentum = np.asarray(ravel_pytree(m)[0])
    parts = {MODEL: slice(0, momentum.size)} | layers(x)
    found = [
        _client(client, c, momentum, base, parts)
        for c, clients in _cohorts(problem, population, x, draws, tick)
        for client in clients
    ]
    means = jax.tree.map(lambda *values: float(np.mean(values)), *found)
    return {name: {"size": part.stop - part.start, **means[name]} for name, part in parts.items()}


def untested(population: Population) -> Population:
    """The same clients without a test set, so that a run ends without an evaluation."""
    return mapped(population, population.name, population.fields, lambda columns, _: columns, "untested")


def _client(
    client: Gradients, c: np.ndarray, m: np.ndarray, base: BaseOptimizer, parts: dict[str, slice]
) -> dict[str, Any]:
    """The measures of one mini-batch in every part of the model."""
    g, support = client
    vectors = {"gradient": g, "momentum": m, "correction": c - g, "cohort": c}
    steps = {"MimeLiteMom": _step(base, g, m), "MimeSGD": c, "MimeMom": _step(base, c, m)}
    return {
        name: {
            "nonzero": {key: nonzero_share(v[part]) for key, v in vectors.items()},
            "effective": {key: effective_density(v[part]) for key, v in vectors.items()},
            "outside_batch": {key: share_outside(step[part], g[part]) for key, step in steps.items()},
            "outside_client": {key: share_outside(step[part], support[part]) for key, step in steps.items()},
        }
        for name, part in parts.items()
    }


def _step(base: BaseOptimizer, g: np.ndarray, m: np.ndarray) -> np.ndarray:
    """U(g, m)."""
    return np.asarray(base.update(Vector(jnp.asarray(g)), Vector(jnp.asarray(m))).tree)


def _cohorts(
    problem: Problem, population: Population, x: Params, draws: Draws, tick: Callable[[], None]
) -> Iterator[tuple[np.ndarray, list[Gradients]]]:
    """For every cohort c, the mean of full gradients weighed by examples, and its clients' own gradients."""
    random = generator(draws.seed, stream=_STREAM)
    able = np.flatnonzero(population.sizes >= draws.batch)
    chunks = -(-int(population.sizes.max()) // problem.chunk)
    gradient = programs(still(problem, x, population.client_at(int(able[0])))).gradient

    def mean(columns: Columns, width: int, chunks: int) -> np.ndarray:
        n = len(next(iter(columns.values())))
        return np.asarray(gradient(x, rows(columns, np.full(n, 1 / n), width, chunks))[1])

    for _ in range(draws.cohorts):
        total, seen, clients = np.zeros_like(np.asarray(ravel_pytree(x)[0])), 0, []
        for index in random.choice(able, min(draws.cohort, len(able)), replace=False):
            columns = population.client_at(int(index))
            size = int(population.sizes[index])
            chosen = random.choice(size, draws.batch, replace=False)
            whole = mean(columns, problem.chunk, chunks)
            few = mean({name: column[chosen] for name, column in columns.items()}, draws.batch, 1)
            clients.append(Gradients(few, whole != 0))
            total, seen = total + size * whole, seen + size
            tick()
        yield total / seen, clients
