"""What a population looks like: how many examples clients have and how their labels differ."""

from __future__ import annotations

import dataclasses
from pathlib import Path

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
    if most < 1:
        raise ConfigError(f"stats: most must be a positive integer, got {most!r}")
    sizes = population.sizes
    top = int(np.ceil(np.log2(max(int(sizes.max(initial=1)), 1) + 1)))
    edges = np.concatenate([[0], 2.0 ** np.arange(top + 1)]).astype(np.int64)
    chosen = np.arange(len(population))
    if len(population) > most:
        chosen = np.sort(generator(seed, stream=3).choice(len(population), most, replace=False))
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


def _test_examples(population: Population) -> int | None:
    if population.test_clients is not None:
        return int(population.test_clients.sizes.sum())
    return None if population.test is None else len(next(iter(population.test.values())))


def _skew(population: Population, chosen: np.ndarray) -> LabelSkew | None:
    name = next((n for n in _LABELS if n in population.fields), None)
    if name is None or population.fields[name].shape or population.fields[name].dtype.kind not in "iu":
        return None
    found = [population.client_at(int(index))[name] for index in chosen]
    classes = max((int(labels.max()) + 1 for labels in found if len(labels)), default=0)
    if classes == 0 or min(int(labels.min(initial=0)) for labels in found) < 0:
        return None
    table = np.stack([np.bincount(labels, minlength=classes) for labels in found if len(labels)])
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


def plot(found: Stats, path: Path) -> None:
    """The histogram of sizes and the labels as a picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    left.bar(range(len(found.histogram)), found.histogram)
    names = [size_range(found.edges, i) for i in range(len(found.histogram))]
    left.set_xticks(range(len(names)), names, rotation=60, fontsize=7)
    left.set(title=f"{found.name}: {found.clients:,} clients", xlabel="examples", ylabel="clients")
    if found.labels is not None:
        right.bar(range(len(found.labels.counts)), found.labels.counts)
        right.set(
            title=f"label skew {found.labels.distance:.2f} (by chance {found.labels.expected:.2f})", xlabel="label"
        )
    else:
        right.set_axis_off()
    figure.savefig(path, dpi=120)


def size_range(edges: np.ndarray, index: int) -> str:
    """The sizes that one bar of the histogram counts."""
    low, high = int(edges[index]), int(edges[index + 1]) - 1
    if index == len(edges) - 2:
        high += 1
    return str(low) if high <= low else f"{low:,}-{high:,}"
