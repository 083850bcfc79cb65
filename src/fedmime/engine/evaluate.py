"""Evaluation: metrics of a model over many examples, computed by a back end in large batches of one shape.

Batches of one shape need one compiled program. The last batch is padded by repeating its final example, and the padding
is left out of the sums. Sums are in float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedmime.engine.backends.backend import Backend

BATCH = 1024  # examples that are evaluated at once

Columns = Mapping[str, np.ndarray]


def evaluate(backend: Backend, params: Any, columns: Columns) -> dict[str, float]:
    """The weighted mean of every metric over the examples of `columns`, each [examples, ...]."""
    return evaluate_all(backend, params, [columns], len(next(iter(columns.values()))))


def evaluate_all(backend: Backend, params: Any, parts: Iterable[Columns], examples: int) -> dict[str, float]:
    """The weighted mean of every metric over examples that come in parts, for data that does not fit into memory.

    Args:
        parts: columns of consecutive examples, for example client by client.
        examples: number of examples of all parts.
    """
    found = _means(backend, params, parts, np.zeros(examples, int), 1)
    return {name: float(means[0]) for name, means in found.items()}


def evaluate_clients(backend: Backend, params: Any, clients: Sequence[Columns]) -> dict[str, np.ndarray]:
    """Every metric of every client [clients], NaN for clients without examples.

    Batches contain the examples of several clients, so that many small clients cost no more than few large ones.
    """
    sizes = [len(next(iter(columns.values()))) for columns in clients]
    return _means(backend, params, clients, np.repeat(np.arange(len(clients)), sizes), len(clients))


def _means(
    backend: Backend, params: Any, parts: Iterable[Columns], group: np.ndarray, groups: int
) -> dict[str, np.ndarray]:
    """The weighted means of every metric by group.

    Args:
        parts: columns of consecutive examples.
        group: the group of each example [examples].
        groups: number of groups.

    Returns:
        For every metric an array [groups]; NaN for a group whose weights are zero.
    """
    sums: dict[str, np.ndarray] = {}
    done = 0
    width = min(BATCH, 1 << max(len(group) - 1, 0).bit_length())
    for batch in _batches(parts, width):
        n = len(next(iter(batch.values())))
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
    """The examples of all parts in order, `width` at a time; the last batch may be shorter.

    No more than one batch and one part are in memory at a time.
    """
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
