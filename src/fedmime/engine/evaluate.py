"""Metrics of a model on many examples, in large compiled batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

BATCH = 1024


class MetricProblem(Protocol):
    """What evaluation needs of a problem."""

    @property
    def metrics(self) -> Callable[[Any, Any], dict[str, tuple[jax.Array, jax.Array]]]: ...


@functools.partial(jax.jit, static_argnames=("problem",))
def _sums(problem: MetricProblem, params: Any, batch: Any, real: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
    def total(value: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        weight = jnp.where(real, weight, 0)
        return jnp.sum(jnp.where(real, value, 0) * weight), jnp.sum(weight)

    return {name: total(*pair) for name, pair in problem.metrics(params, batch).items()}


def evaluate(problem: MetricProblem, params: Any, columns: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The weighted mean of every metric over all examples; the last batch is padded and masked."""
    n = len(next(iter(columns.values())))
    width = min(BATCH, 1 << max(n - 1, 0).bit_length())
    parts = []
    for start in range(0, n, width):
        rows = np.minimum(np.arange(start, start + width), n - 1)
        batch = {name: column[rows] for name, column in columns.items()}
        parts.append(_sums(problem, params, batch, np.arange(start, start + width) < n))
    sums = jax.tree.map(lambda *values: float(np.sum([float(v) for v in values])), *parts)
    return {name: value / weight if weight else float("nan") for name, (value, weight) in sums.items()}
