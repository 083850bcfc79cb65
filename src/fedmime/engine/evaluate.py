"""Metrics of a model on many examples, in large batches that a back end computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedmime.engine.backends.backend import Backend
from fedmime.engine.contract import check_metrics

BATCH = 1024  # examples

Columns = Mapping[str, np.ndarray]


def evaluate(backend: Backend, params: Any, columns: Columns) -> dict[str, float]:
    """The weighted mean of every metric over all examples."""
    return evaluate_all(backend, params, [columns], len(next(iter(columns.values()))))


def evaluate_all(backend: Backend, params: Any, parts: Iterable[Columns], examples: int) -> dict[str, float]:
    """The same over parts with so many examples together, of which few are in memory at a time."""
    found = _means(backend, params, parts, np.zeros(examples, int), 1)
    return {name: float(means[0]) for name, means in found.items()}


def evaluate_clients(backend: Backend, params: Any, clients: Sequence[Columns]) -> dict[str, np.ndarray]:
    """Every metric of every client, NaN for one without examples. Batches span clients, so small ones cost no more."""
    sizes = [len(next(iter(columns.values()))) for columns in clients]
    return _means(backend, params, clients, np.repeat(np.arange(len(clients)), sizes), len(clients))


def _means(
    backend: Backend, params: Any, parts: Iterable[Columns], group: np.ndarray, groups: int
) -> dict[str, np.ndarray]:
    """Weighted means by group of examples, from batches of one shape; the last one repeats its final example."""
    sums: dict[str, np.ndarray] = {}
    done = 0
    width = min(BATCH, 1 << max(len(group) - 1, 0).bit_length())
    for batch in _batches(parts, width):
        n = len(next(iter(batch.values())))
        if not done:
            check_metrics(backend.problem, params, batch)
        padded = {name: column[np.minimum(np.arange(width), n - 1)] for name, column in batch.items()}
        for name, (values, weights) in backend.metrics(params, padded).items():
            total = sums.setdefault(name, np.zeros((2, groups)))
            real = weights[:n].astype(np.float64)
            np.add.at(total[0], group[done : done + n], values[:n] * real)
            np.add.at(total[1], group[done : done + n], real)
        done += n
    with np.errstate(invalid="ignore"):
        return {name: value / weight for name, (value, weight) in sums.items()}


def _batches(parts: Iterable[Columns], width: int) -> Iterator[dict[str, np.ndarray]]:
    """The examples of all parts in order, `width` at a time; never more than that and one part in memory."""
    waiting: dict[str, np.ndarray] = {}
    for part in parts:
        waiting = {
            name: np.concatenate([waiting[name], column]) if waiting else column for name, column in part.items()
        }
        while len(next(iter(waiting.values()))) >= width:
            yield {name: column[:width] for name, column in waiting.items()}
            waiting = {name: column[width:] for name, column in waiting.items()}
    if waiting and len(next(iter(waiting.values()))):
        yield waiting
