"""Weighted means of a problem's metrics over examples: of a test set, of data that comes in parts, of single clients.

A back end computes metrics in large batches of one shape, which need one compiled program. The last batch is padded by
repeating its final example, and the padding is left out of the sums. Sums are in float64. Examples are read as they are
needed: no more than one batch and one part are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fedmime.engine.backends.backend import Backend
from fedmime.engine.cohort import Columns, first_column

BATCH = 1024  # examples that are evaluated at once
Sums = dict[str, np.ndarray]  # for every metric [2, groups]: the weighted sum of its values, and the sum of the weights


def mean_metrics(backend: Backend, params: Any, columns: Columns) -> dict[str, float]:
    """The weighted mean of every metric over the examples of `columns`, each [examples, ...]."""
    return stream_metrics(backend, params, [columns], len(first_column(columns)))


def stream_metrics(
    backend: Backend, params: Any, parts: Iterable[Columns], examples: int, batch_size: int = BATCH
) -> dict[str, float]:
    """The weighted mean of every metric over examples that come in parts, for data that does not fit into memory.

    Args:
        parts: columns of consecutive examples, for example client by client.
        examples: number of examples of all parts.
        batch_size: examples that are evaluated at once.
    """
    found = means(sums(backend, params, ((0, part) for part in parts), 1, width_of(examples, batch_size)))
    return {name: float(mean[0]) for name, mean in found.items()}


def client_sums(backend: Backend, params: Any, population: Any, positions: np.ndarray, batch_size: int = BATCH) -> Sums:
    """The weighted sums of every metric for each of some clients, given by their positions in a population."""
    parts = ((group, population.client_at(int(i))) for group, i in enumerate(positions))
    examples = int(population.sizes[positions].sum())
    return sums(backend, params, parts, len(positions), width_of(examples, batch_size))


def evenly_spaced(positions: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the positions, evenly spaced: the same ones whenever they are asked for."""
    return positions[np.linspace(0, len(positions) - 1, min(len(positions), most)).astype(int)]


def width_of(examples: int, batch_size: int = BATCH) -> int:
    """How wide the batches for so many examples are: a power of two, so that few widths are compiled, or the most."""
    return min(batch_size, 1 << max(examples - 1, 0).bit_length())


def sums(backend: Backend, params: Any, parts: Iterable[tuple[int, Columns]], groups: int, width: int) -> Sums:
    """The weighted sums of every metric by group.

    Batches contain the examples of several parts, so that many small clients cost no more than few large ones.

    Args:
        parts: the number of a group, and columns of consecutive examples of it.
        groups: number of groups.
        width: examples that are evaluated at once.
    """
    found: Sums = {}
    for group, batch in _batches(parts, width):
        n = len(group)
        padded = {name: column[np.minimum(np.arange(width), n - 1)] for name, column in batch.items()}
        for name, (values, weights) in backend.metrics(params, padded).items():
            total = found.setdefault(name, np.zeros((2, groups)))
            real = weights[:n].astype(np.float64)
            np.add.at(total[0], group, values[:n] * real)
            np.add.at(total[1], group, real)
    return found


def means(found: Sums) -> dict[str, np.ndarray]:
    """The weighted means [groups] of every metric; NaN for a group whose weights are zero."""
    with np.errstate(invalid="ignore"):
        return {name: value / weight for name, (value, weight) in found.items()}


def pooled(found: Sums) -> dict[str, float]:
    """The weighted mean of every metric over the examples of all groups."""
    whole = means({name: each.sum(axis=1, keepdims=True) for name, each in found.items()})
    return {name: float(mean[0]) for name, mean in whole.items()}


def worst(name: str, values: np.ndarray) -> float:
    """The mean over the tenth of clients with the lowest accuracy, or for other metrics with the highest values."""
    ordered = np.sort(values)
    tenth = max(1, len(ordered) // 10)
    return float((ordered[:tenth] if name.endswith("accuracy") else ordered[-tenth:]).mean())


def _batches(parts: Iterable[tuple[int, Columns]], width: int) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """The examples of all parts in order, `width` at a time, with the group of each; the last batch may be shorter."""
    waiting: list[tuple[np.ndarray, Columns]] = []
    there = 0
    for group, part in parts:
        n = len(first_column(part))
        if not n:
            continue
        waiting.append((np.full(n, group), part))
        there += n
        if there >= width:
            groups, columns = _joined(waiting)
            full = there - there % width
            for start in range(0, full, width):
                here = slice(start, start + width)
                yield groups[here], {name: column[here] for name, column in columns.items()}
            there -= full
            waiting = [(groups[full:], {name: column[full:] for name, column in columns.items()})] if there else []
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[tuple[np.ndarray, Columns]]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Parts one after another; a single one is not copied."""
    if len(parts) == 1:
        return parts[0][0], dict(parts[0][1])
    names = parts[0][1]
    return np.concatenate([group for group, _ in parts]), {
        name: np.concatenate([columns[name] for _, columns in parts]) for name in names
    }
