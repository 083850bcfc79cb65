"""Heat maps of grids: the number in every cell, the best one boxed, diverged ones hatched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedmime.report import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAP = "cividis"  # even steps of lightness, the same to colour-blind readers


def heat_map(
    values: np.ndarray,
    rows: Sequence[object],
    columns: Sequence[object],
    title: str,
    row_name: str,
    column_name: str,
    boxed: tuple[int, int] | None = None,
    scale: tuple[float, float] | None = None,
    written: str = "{:.0%}",
) -> Figure:
    """A grid of figures, NaN where a point diverged; the first row is the lowest. `boxed` is the cell to mark, by
    default the one with the highest figure.

    `scale` fixes what the ends of the colours mean, so that several maps can be compared.
    """
    values = np.asarray(values, float)
    known = np.isfinite(values)
    low, high = scale or ((float(values[known].min()), float(values[known].max())) if known.any() else (0.0, 1.0))
    with style.styled():
        figure = style.figure(1.4 + 0.52 * len(columns), 1.3 + 0.4 * len(rows))
        ax = figure.subplots()
        shown = np.ma.masked_invalid(values)
        ax.pcolormesh(shown, cmap=_MAP, vmin=low, vmax=high, edgecolors=style.PAPER, linewidth=1.2)
        for i, j in np.ndindex(*values.shape):
            if known[i, j]:
                dark = (values[i, j] - low) / max(high - low, 1e-12) < 0.55
                ink = "#fdfdfd" if dark else "#101214"
                ax.text(j + 0.5, i + 0.5, written.format(values[i, j]), ha="center", va="center", color=ink, fontsize=8)
            else:
                ax.add_patch(_cell(i, j, hatch="////", edgecolor=style.MUTED, linewidth=0))
        best = boxed or (_best(values) if known.any() else None)
        if best is not None:
            ax.add_patch(_cell(*best, edgecolor=style.PAPER, linewidth=4.2))
            ax.add_patch(_cell(*best, edgecolor="#d7261e", linewidth=2.2))
        ax.set_xticks(np.arange(len(columns)) + 0.5, [_number(x) for x in columns])
        ax.set_yticks(np.arange(len(rows)) + 0.5, [_number(x) for x in rows])
        ax.set(title=title, xlabel=column_name, ylabel=row_name)
        ax.tick_params(length=0)
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
        if not known.all():
            figure.supxlabel("hatched: diverged", fontsize=8, x=0.99, ha="right", color=style.MUTED)
    return figure


def _best(values: np.ndarray) -> tuple[int, int]:
    row, column = np.unravel_index(np.nanargmax(values), values.shape)
    return int(row), int(column)


def _cell(i: int, j: int, **look: object):
    from matplotlib.patches import Rectangle

    return Rectangle((j, i), 1, 1, facecolor="none", zorder=3, **look)  # pyright: ignore[reportArgumentType]


def _number(value: object) -> str:
    return f"{value:.2g}" if isinstance(value, float | np.floating) else str(value)
