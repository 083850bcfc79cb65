"""Labels at the ends of lines: readers need no legend, and no two labels overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def spread(wanted: list[float], gap: float, low: float = 0.0, high: float = 1.0) -> list[float]:
    """The places nearest to those wanted that are `gap` apart, in the same order, within [low, high] if they fit."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups: list[tuple[float, int]] = []  # centre and number of labels that touch
    for i in order:
        centre, count = wanted[i], 1
        while True:
            half = (count - 1) * gap / 2
            centre = max(min(centre, high - half), low + half)
            if not groups or centre - groups[-1][0] >= (count + groups[-1][1]) * gap / 2 - 1e-12:
                break
            before, many = groups.pop()
            centre, count = (centre * count + before * many) / (count + many), count + many
        groups.append((centre, count))
    placed = [centre + (k - (count - 1) / 2) * gap for centre, count in groups for k in range(count)]
    found = dict(zip(order, placed, strict=True))
    return [found[i] for i in range(len(wanted))]


def label_lines(ax: Axes, size: float = 9.0) -> None:
    """Write each line's label beside its end, right of the axes; labels that would overlap are moved apart.

    Call it last: limits, scales and titles decide where lines end.
    """
    import numpy as np

    drawn = ax.get_figure(root=True)
    if drawn is None:
        return
    drawn.draw_without_rendering()  # so that the axes have their height
    within, ends = ax.transAxes.inverted(), []
    for one in ax.get_lines():
        points = np.column_stack([np.asarray(values, float) for values in one.get_data()])
        points = points[np.isfinite(points).all(axis=1)]
        if not str(one.get_label()).startswith("_") and len(points):
            x, y = within.transform(one.get_transform().transform(points[-1]))
            ends.append((one, float(x), float(np.clip(y, -0.02, 1.02))))
    gap = size * 1.35 * drawn.dpi / 72 / ax.get_window_extent().height
    places = spread([y for _, _, y in ends], gap)
    for (one, x, y), place in zip(ends, places, strict=True):
        hue = one.get_color()
        leader = {"arrowstyle": "-", "color": hue, "lw": 0.8, "ls": (0, (1.5, 2.5)), "relpos": (0, 0.5), "shrinkA": 1}
        ax.annotate(
            str(one.get_label()),
            (x, y),
            (1.04, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=hue,
            fontsize=size,
            fontweight="bold",
            va="center",
            annotation_clip=False,
            arrowprops=leader,
        )
