"""A learning problem: how to start a model, its loss on every example, and how well it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fedmime.numbers import count, function

Params = Any
Batch = Mapping[str, jax.Array]


def _accept(fields: Mapping[str, np.ndarray]) -> None:
    """Find nothing wrong with the data."""


def _no_metrics(params: Params, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    return {}


@dataclasses.dataclass(frozen=True)
class Factors:
    r"""What rebuilds an example's gradient at a fixed point x without computing it again (Mime's local steps).

    `record(x, batch, key) -> (losses, kept)`: the losses [n], and a pytree of arrays [n, ...]; together with the batch
    it determines the gradient $g_j(x)$ of every example j.
    `mean_grad(kept, batch, weights)`: $\sum_j w_j\, g_j(x)$.
    `grad_difference(y, batch, kept, weights, key) -> (losses at y, gradient)`: $\sum_j w_j\,(g_j(y) - g_j(x))$, formed
    in one product per layer; where `kept` is None, the gradient at y alone.
    The weights [n] already hold the padding mask and the 1/count of a mean.
    """

    record: Callable[[Params, Batch, jax.Array], tuple[jax.Array, Any]]
    mean_grad: Callable[[Any, Batch, jax.Array], Params]
    grad_difference: Callable[[Params, Batch, Any, jax.Array, jax.Array], tuple[jax.Array, Params]]


@dataclasses.dataclass(frozen=True)
class Problem:
    """Model and loss as pure functions of plain pytrees.

    `loss` returns one number per example, never a mean: the engine weighs the examples itself, so partial batches
    and padding are exact. The key feeds dropout; a model without random numbers ignores it.
    `metrics` returns, for every metric, a value and a weight per example: the metric is their weighted mean
    (a sequence's accuracy weighs its real tokens).
    `check` looks at host arrays before they are trained on and raises `DataError` on labels out of range and the like.
    `factors`, where a model has them, spare Mime the second gradient of each local step.
    `chunk` is how many examples a full gradient takes at once: many for dense layers, few where activations are large.
    """

    name: str
    init: Callable[[jax.Array], Params]
    loss: Callable[[Params, Batch, jax.Array], jax.Array]
    metrics: Callable[[Params, Batch], dict[str, tuple[jax.Array, jax.Array]]] = _no_metrics
    check: Callable[[Mapping[str, np.ndarray]], None] = _accept
    factors: Factors | None = None
    chunk: int = 128

    def __post_init__(self) -> None:
        count("problem", "chunk", self.chunk, least=1)


def from_functions(
    init: Callable[[jax.Array], Params],
    loss: Callable[[Params, Batch, jax.Array], jax.Array],
    metrics: Callable[[Params, Batch], dict[str, tuple[jax.Array, jax.Array]]] = _no_metrics,
    check: Callable[[Mapping[str, np.ndarray]], None] = _accept,
    name: str = "custom",
) -> Problem:
    """A problem from your own functions; see `Problem` for what each returns."""
    for label, value in (("init", init), ("loss", loss), ("metrics", metrics), ("check", check)):
        function("from_functions", label, value)
    return Problem(name, init, loss, metrics, check)
