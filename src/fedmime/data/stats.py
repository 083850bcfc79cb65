"""What a population looks like: how many examples clients have and how their labels differ."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedmime.data.population import Population
from fedmime.errors import ConfigError
from fedmime.randomness import generator

_LABELS = ("y", "label")
_QUANTILES = (0, 25, 50, 75, 90, 99, 100)


@dataclasses.dataclass(frozen=True)
class LabelSkew:
    """How the labels of clients differ from those of all, over the clients looked at."""

    counts: np.ndarray  # examples of each label
    distinct: float  # labels of a client, on average
    distance: float  # mean total variation between a client's labels and all labels: 0 alike, 1 apart
    expected: float  # the same distance for i.i.d. clients of these sizes


@dataclasses.dataclass(frozen=True)
class Stats:
    """A population in numbers."""

    name: str
    clients: int
    examples: int
    empty: int
    test_examples: int | None
    fields: dict[str, str]
    quantiles: dict[int, int]
    mean: float
    edges: np.ndarray  # of the histogram of sizes, powers of two
    histogram: np.ndarray
    labels: LabelSkew | None
    looked_at: int  # clients read for the labels


def stats(population: Population, most: int = 5000, seed: int = 0) -> Stats:
    """Sizes of all clients; labels of at most `most`, drawn by `seed`."""
    sizes = population.sizes
    top = int(np.ceil(np.log2(max(int(sizes.max(initial=1)), 1) + 1)))
    edges = np.concatenate([[0], 2.0 ** np.arange(top + 1)]).astype(np.int64)
    chosen = drawn(population, most, seed)
    return Stats(
        population.name,
        len(population),
        int(sizes.sum()),
        int((sizes == 0).sum()),
        _test_examples(population),
        {name: str(field) for name, field in population.fields.items()},
        {q: int(np.percentile(sizes, q, method="lower")) for q in _QUANTILES} if len(sizes) else {},
        float(sizes.mean()) if len(sizes) else 0.0,
        edges,
        np.histogram(sizes, np.append(edges[:-1], edges[-1] + 1))[0],
        _skew(population, chosen),
        len(chosen),
    )


def drawn(population: Population, most: int, seed: int = 0) -> np.ndarray:
    """The positions of all clients, or of `most` drawn by `seed`, in increasing order."""
    if not isinstance(most, int | np.integer) or most < 1:
        raise ConfigError(f"most must be a positive integer, got {most!r}")
    if len(population) <= most:
        return np.arange(len(population))
    return np.sort(generator(seed, stream=3).choice(len(population), most, replace=False))


def label_field(population: Population, field: str | None = None) -> str | None:
    """The field that holds one label for each example; None if there is none, or the given one does not."""
    name = field or next((n for n in _LABELS if n in population.fields), None)
    found = None if name is None else population.fields.get(name)
    return None if found is None or found.shape or found.ragged or found.dtype.kind not in "iu" else name


def label_counts(population: Population, chosen: np.ndarray, field: str) -> np.ndarray | None:
    """[clients, labels] how many examples of each label the chosen clients have; None without or with negative ones."""
    found = [population.client_at(int(index))[field] for index in chosen]
    classes = max((int(labels.max()) + 1 for labels in found if len(labels)), default=0)
    if classes == 0 or min(int(labels.min(initial=0)) for labels in found) < 0:
        return None
    return np.stack([np.bincount(labels, minlength=classes) for labels in found])


def _test_examples(population: Population) -> int | None:
    if population.test_clients is not None:
        return int(population.test_clients.sizes.sum())
    return None if population.test is None else len(next(iter(population.test.values())))


def _skew(population: Population, chosen: np.ndarray) -> LabelSkew | None:
    name = label_field(population)
    table = None if name is None else label_counts(population, chosen, name)
    if table is None:
        return None
    table = table[table.any(axis=1)]
    totals = table.sum(axis=0)
    return LabelSkew(totals, float((table > 0).sum(axis=1).mean()), _distance(table, totals), _by_chance(table, totals))


def _distance(table: np.ndarray, totals: np.ndarray) -> float:
    """Mean total variation distance between rows and totals, both as shares."""
    shares = table / table.sum(axis=1, keepdims=True)
    return float(np.abs(shares - totals / totals.sum()).sum(axis=1).mean() / 2)


def _by_chance(table: np.ndarray, totals: np.ndarray) -> float:
    """What the distance would be if every client drew its examples from all: small clients differ by luck alone."""
    drawn = generator(0, stream=4).multinomial(table.sum(axis=1), totals / totals.sum())
    return _distance(drawn, totals)


def size_range(edges: np.ndarray, index: int) -> str:
    """The sizes that one bar of the histogram counts."""
    low, high = int(edges[index]), int(edges[index + 1]) - 1
    if index == len(edges) - 2:
        high += 1
    return str(low) if high <= low else f"{low:,}-{high:,}"
