r"""How far Hessians are apart: the norm of the mean one ($L$), and each client's distance from it ($\delta$)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedmime.data import Population
from fedmime.data.population import Columns
from fedmime.models.problem import Problem
from fedmime.theory.derivatives import Programs, rows
from fedmime.theory.draws import Draws, Interval, average
from fedmime.theory.lanczos import Norm, norm


class Curvature(NamedTuple):
    """L with its interval, every client's distance, and what that took."""

    L: Norm
    interval: Interval
    distances: list[Norm]
    products: int
    examples: int


def curvature(
    problem: Problem,
    compiled: Programs,
    population: Population,
    params: Any,
    drawn: Draws,
    most: int | None,
    tolerance: float,
    products: int,
    random: np.random.Generator,
    tell: Callable[[], None],
) -> Curvature:
    """Norms of the mean Hessian and of each client's distance from it: both weigh the same pool of examples."""
    parts = [_some(population.client_at(int(position)), most, random) for position in drawn.positions]
    sizes = np.asarray([len(next(iter(part.values()))) for part in parts])
    n = int(sizes.sum())
    edges = np.concatenate([[0], np.cumsum(sizes)])
    pool = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    mean = np.repeat(drawn.shares / sizes, sizes)
    table = rows(pool, mean, min(problem.chunk, n))
    fields, chunk = jax.device_put(table.fields), table.weights.shape[1]
    like = ravel_pytree(params)[0]

    def operator(weights: np.ndarray, first: int = 0, last: int = table.count) -> Callable[[jax.Array], jax.Array]:
        padded = np.zeros(table.weights.size)
        padded[:n] = weights
        on_device = jax.device_put(padded.reshape(table.weights.shape))
        return lambda v: compiled.hessian(params, fields, on_device, first, last, v)

    L = norm(operator(mean), like, random, tolerance, products)
    tell()
    used, distances, along = L.products, [], []
    for i, size in enumerate(sizes):
        own = np.zeros(n)
        own[edges[i] : edges[i + 1]] = 1 / size
        distances.append(norm(operator(own - mean), like, random, tolerance, products))
        used += distances[-1].products
        only = operator(own, int(edges[i]) // chunk, -(-int(edges[i + 1]) // chunk))
        along.append(float(jnp.vdot(L.vector, only(L.vector))))
        tell()
    # what each client's Hessian does along the leading direction shows how the draw of clients moves L
    _, (low, high) = average(np.abs(along), drawn, random)
    interval = (min(low, L.value), max(high, L.value) + L.residual)
    return Curvature(L, interval, distances, used, used * n + n)


def _some(columns: Columns, most: int | None, random: np.random.Generator) -> Columns:
    """At most so many of a client's examples, drawn at random."""
    n = len(next(iter(columns.values())))
    if most is None or n <= most:
        return columns
    chosen = np.sort(random.choice(n, most, replace=False))
    return {name: column[chosen] for name, column in columns.items()}
