"""Pictures of a population: which labels clients hold, and how many examples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmime.data.population import Population
from fedmime.data.stats import Stats, drawn, label_counts, label_field, size_range
from fedmime.errors import ConfigError, DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMED = 30  # clients that get a row with their id and their size
_TOLD = 15  # labels up to which cells tell their share in figures
_ROWS = 500  # of a picture of many clients
_INK, _MUTED = "#1f2328", "#646c75"


def plot_labels(
    population: Population,
    path: str | os.PathLike[str] | None = None,
    *,
    ax: Any = None,
    field: str | None = None,
    most: int = 5000,
    seed: int = 0,
) -> Figure:
    """Draw the label mix of clients: a row for each client, a column for each label, the darker the larger its share.

    Up to 30 clients are rows with their ids, in their own order. More are sorted by their most frequent label, so that
    the picture shows what kinds of clients there are; i.i.d. clients make vertical stripes, one label a client a
    diagonal.

    Args:
        path: the PNG, SVG or PDF file to write, if any.
        ax: draw into these axes of matplotlib, instead of a new figure.
        field: which field holds the labels; `y` or `label` by default.
        most: how many clients are read; of more, so many are drawn by `seed`.

    Returns:
        The figure of matplotlib.
    """
    name = label_field(population, field)
    if name is None:
        told = ", ".join(f"{key}: {value}" for key, value in population.fields.items())
        asked = f"field={field!r}" if field else "'y' or 'label'"
        raise DataError(f"{population.name}: {asked} is no field of whole numbers, one for each example; it has {told}")
    chosen = drawn(population, most, seed)
    table = label_counts(population, chosen, name)
    if table is None:
        raise DataError(f"{population.name}: field {name!r} has no labels, or negative ones")
    figure = _figure((8, 0.28 * len(chosen) + 1.9 if len(chosen) <= _NAMED else 6.5)) if ax is None else ax.figure
    _draw(ax or figure.add_subplot(), population, chosen, table)
    if path is not None:
        _write(figure, path)
    return figure


def plot_stats(population: Population, found: Stats, path: str | os.PathLike[str], most: int = 5000) -> None:
    """Write a picture of a population: its clients by size, and their label mix where there are labels."""
    name = label_field(population)
    tall = min(len(population), _NAMED) * 0.2 + 2.4 if found.labels is not None else 3.6
    figure = _figure((13, max(tall, 4.2)) if found.labels is not None else (6, 3.6))
    left, right = (
        figure.subplots(1, 2, width_ratios=[1, 1.7]) if found.labels is not None else (figure.add_subplot(), None)
    )
    left.bar(range(len(found.histogram)), found.histogram, color="#0a5fa8", width=0.85)
    ranges = [size_range(found.edges, index) for index in range(len(found.histogram))]
    left.set_xticks(range(len(ranges)), ranges, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
    left.set_title(f"{found.name}: {found.clients:,} clients, {found.examples:,} examples", fontsize=10, loc="left")
    left.set(xlabel="examples of a client", ylabel="clients")
    left.spines[["top", "right"]].set_visible(False)
    if right is not None and name is not None:
        chosen = drawn(population, most)
        table = label_counts(population, chosen, name)
        assert table is not None
        _draw(right, population, chosen, table)
    _write(figure, path)


def _figure(size: tuple[float, float]) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots are an extra: pip install 'fedmime[plot]'") from None
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _write(figure: Figure, path: str | os.PathLike[str]) -> None:
    if Path(path).suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"plot: path must end in .png, .svg or .pdf, got {str(path)!r}")
    figure.savefig(path, dpi=150)


def _draw(ax: Axes, population: Population, chosen: np.ndarray, table: np.ndarray) -> None:
    """The heat map of label shares [clients, labels]."""
    from matplotlib.colors import PowerNorm

    sizes = table.sum(axis=1)
    few = len(chosen) <= _NAMED
    if not few:
        chosen, table, sizes = (part[_order(table)] for part in (chosen, table, sizes))
    shares = table / np.maximum(sizes, 1)[:, None]
    # The root makes shares of a few per cent visible beside clients that hold a single label.
    norm = PowerNorm(0.5, 0, max(float(shares.max()), 1e-9))
    rows = shares if few else _averaged(shares, _ROWS)
    box = (-0.5, shares.shape[1] - 0.5, len(shares) - 0.5, -0.5)  # whole numbers are in the middle of their rows
    image = ax.imshow(rows, cmap="Blues", norm=norm, aspect="auto", interpolation="nearest", extent=box)
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02, fraction=0.05)
    bar.set_label("share of the client's examples", color=_MUTED)
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.1%}" if 0 < value < 0.01 else f"{value:.0%}")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    labels = table.shape[1]
    step = max(1, -(-labels // 32))
    ax.set_xticks(range(0, labels, step), [str(label) for label in range(0, labels, step)], fontsize=8)
    ax.set_xlabel("label")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    looked = f"{len(chosen):,} of {len(population):,}" if len(chosen) < len(population) else f"{len(chosen):,}"
    ax.set_title(f"{population.name}: label mix of {looked} clients", fontsize=10, loc="left", color=_INK)
    if few:
        _name_rows(ax, population, chosen, shares, sizes, norm)
    else:
        ax.yaxis.set_major_formatter("{x:,.0f}")
        ax.set_ylabel("clients, by their most frequent label")


def _averaged(shares: np.ndarray, most: int) -> np.ndarray:
    """At most so many rows, each the mean of neighbouring clients: pixels show no more."""
    starts = np.unique(np.linspace(0, len(shares), min(most, len(shares)), endpoint=False).astype(int))
    return np.add.reduceat(shares, starts) / np.diff(np.append(starts, len(shares)))[:, None]


def _name_rows(
    ax: Axes, population: Population, chosen: np.ndarray, shares: np.ndarray, sizes: np.ndarray, norm: Any
) -> None:
    """Ids on the left, sizes on the right, and shares in the cells if these are large enough."""
    rows, labels = shares.shape
    names = [population.ids[int(index)] for index in chosen]
    ax.set_yticks(range(rows), [name if len(name) <= 18 else f"{name[:17]}…" for name in names], fontsize=8)
    beside = ax.secondary_yaxis("right")
    beside.set_yticks(range(rows), [f"{size:,}" for size in sizes], fontsize=8, color=_MUTED)
    beside.set_ylabel("examples", color=_MUTED)
    beside.tick_params(length=0)
    beside.spines[:].set_visible(False)
    ax.set_yticks(np.arange(rows - 1) + 0.5, minor=True)
    ax.set_xticks(np.arange(labels - 1) + 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=1.2)
    ax.tick_params(which="minor", length=0)
    if labels > _TOLD:
        return
    for row, label in np.argwhere(shares > 0).tolist():
        share = float(shares[row, label])
        colour = "white" if norm(share) > 0.62 else _INK
        told = f"{share:.0%}" if share >= 0.005 else "<1%"
        ax.text(label, row, told, ha="center", va="center", fontsize=7, color=colour)


def _order(table: np.ndarray) -> np.ndarray:
    """Clients by their most frequent label; among those of one label, by its share, which falls."""
    sizes = np.maximum(table.sum(axis=1), 1)
    return np.lexsort((-table.max(axis=1) / sizes, table.argmax(axis=1)))
