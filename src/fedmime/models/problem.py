"""A learning problem: how to initialise a model, its loss on every example, and its metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import numpy as np

from fedmime.origin import Origin
from fedmime.validation import count, function

Params = Any
Batch = Mapping[str, jax.Array]


def _accept(fields: Mapping[str, np.ndarray]) -> None:
    """The default check, which accepts any data."""


def _no_metrics(params: Params, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    """The default metrics: none. Evaluations then report the mean loss."""
    return {}


@dataclasses.dataclass(frozen=True)
class Factors:
    r"""How to rebuild an example's gradient at a fixed point x without computing it again, for Mime's local steps.

    Weights [n] already include the padding mask and the factor 1/count of a mean.

    Args:
        record: `record(x, batch, key) -> (losses, factors)`, the losses [n] and a pytree of arrays [n, ...]. Together
            with the batch it determines the gradient $g_j(x)$ of every example j.
        mean_grad: `mean_grad(factors, batch, weights)`, the sum $\sum_j w_j\, g_j(x)$.
        grad_difference: `grad_difference(y, batch, factors, weights, key) -> (losses at y, gradient)` with the gradient
            $\sum_j w_j\,(g_j(y) - g_j(x))$, formed in one product per layer; where `factors` is None, the gradient at y
            alone.
    """

    record: Callable[[Params, Batch, jax.Array], tuple[jax.Array, Any]]
    mean_grad: Callable[[Any, Batch, jax.Array], Params]
    grad_difference: Callable[[Params, Batch, Any, jax.Array, jax.Array], tuple[jax.Array, Params]]


@dataclasses.dataclass(frozen=True)
class Problem:
    """A model and its loss as pure functions of plain pytrees.

    Args:
        name: for messages and reports.
        init: `init(key)` returns new parameters.
        loss: `loss(params, batch, key)` returns one number per example [n], never a mean: the engine weighs the
            examples itself, so that partial mini-batches and padding are exact. The key feeds dropout; a model without
            random numbers ignores it.
        metrics: `metrics(params, batch)` returns for every metric a value [n] and a weight [n] per example; the metric
            is their weighted mean (the accuracy of a sequence is weighed by its number of real tokens). Without
            metrics, evaluations report the mean loss.
        check: looks at host arrays before they are trained on and raises `DataError`, for example on labels out of
            range.
        factors: spare Mime the second gradient of each local step, for models that have them.
        chunk: how many examples a full gradient takes at once: many for dense layers, few where activations are large.
    """

    name: str
    init: Callable[[jax.Array], Params]
    loss: Callable[[Params, Batch, jax.Array], jax.Array]
    metrics: Callable[[Params, Batch], dict[str, tuple[jax.Array, jax.Array]]] = _no_metrics
    check: Callable[[Mapping[str, np.ndarray]], None] = _accept
    factors: Factors | None = None
    chunk: int = 128
    origin: Origin | None = dataclasses.field(default=None, init=False, compare=False)
    """The call that makes the same problem in another process; a changed copy (`dataclasses.replace`) has none."""

    def __post_init__(self) -> None:
        count("problem", "chunk", self.chunk, least=1)

    def made_by(self, origin: Origin) -> Self:
        """The same problem, which remembers how it was made. It is pickled as that call."""
        new = dataclasses.replace(self)
        object.__setattr__(new, "origin", origin)
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        return super().__reduce_ex__(protocol) if self.origin is None else self.origin.pickled


def from_functions(
    init: Callable[[jax.Array], Params],
    loss: Callable[[Params, Batch, jax.Array], jax.Array],
    metrics: Callable[[Params, Batch], dict[str, tuple[jax.Array, jax.Array]]] = _no_metrics,
    check: Callable[[Mapping[str, np.ndarray]], None] = _accept,
    name: str = "custom",
) -> Problem:
    """A problem from your own functions; see `Problem` for their arguments and results.

    Without `metrics`, evaluations report the mean loss, such as `test_loss`.
    """
    for label, value in (("init", init), ("loss", loss), ("metrics", metrics), ("check", check)):
        function("from_functions", label, value)
    return Problem(name, init, loss, metrics, check)
