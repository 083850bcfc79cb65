"""The figure of densities: a row for each task and for its sparsest layer, a mark for each vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmime.experiments.sparsity_density import MODEL
from fedmime.report import style
from fedmime.report.curves import WIDE
from fedmime.report.picture import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Data = dict[str, Any]
Mark = tuple[str, str, str]  # label, colour, shape
_LEAST = 1e-5  # of what is drawn; a share of zero has no place on a logarithmic axis
_APART = 0.2  # rows between the marks of one row

_VECTORS: dict[str, Mark] = {  # in the colours of the methods that step along them
    "gradient": ("mini-batch gradient ∇fᵢ(x; ζ)", style.colour("FedAvg"), "o"),
    "momentum": ("server momentum m", style.colour("MimeLite"), "s"),
    "correction": ("correction c − ∇fᵢ(x; ζ)", style.colour("Mime"), "D"),
    "cohort": ("cohort's gradient c", style.MUTED, "^"),
}
_STEPS: dict[str, Mark] = {
    "MimeLiteMom": ("MimeLite, momentum", style.colour("MimeLite"), "s"),
    "MimeSGD": ("Mime, SGD", style.colour("Mime"), "D"),
    "MimeMom": ("Mime, momentum", style.INK, "o"),
}


def picture(tasks: dict[str, Data]) -> Picture:
    """Densities of the four vectors, and how much of a step falls outside the mini-batch's gradient."""
    rows = [(task, name, layers[name]) for task, layers in tasks.items() for name in (MODEL, sparsest(layers)) if name]
    with style.styled():
        figure = style.figure(WIDE, 2.1 + 0.42 * len(rows))
        left, middle, right = panels = figure.subplots(1, 3, sharey=True)
        _marks(left, rows, "nonzero", _VECTORS)
        _marks(middle, rows, "effective", _VECTORS)
        _marks(right, rows, "outside_batch", _STEPS)
        left.set(title="Entries that are not zero", xlabel="share of entries")
        middle.set(title="Effective density", xlabel="share of entries")
        right.set(title="Step outside the mini-batch", xlabel="share of the squared step")
        for ax in panels:
            _log(ax)
        left.set_yticks(range(len(rows)), [task if name == MODEL else f"its {name}" for task, name, _ in rows])
        left.set_ylim(len(rows) - 0.5, -0.5)
        for label, (_, name, _) in zip(left.get_yticklabels(), rows, strict=True):
            label.set(color=style.INK if name == MODEL else style.MUTED, weight="bold" if name == MODEL else "normal")
        for ax, place in ((left, "outside lower left"), (right, "outside lower right")):
            handles, labels = ax.get_legend_handles_labels()
            figure.legend(handles, labels, loc=place, ncols=2)  # pyright: ignore[reportCallIssue, reportArgumentType]
    told = (
        "Each task's whole model, and below it the layer whose mini-batch gradient has the most zeros. Right: how much "
        "of the first local step falls where the client's own mini-batch gradient is exactly zero; a mark at the left "
        f"edge is {100 * _LEAST:g} % or less."
    )
    return Picture("sparsity", "Density of gradients, momentum and correction", figure, told, wide=True)


def sparsest(layers: Data) -> str | None:
    """The layer whose mini-batch gradients have the most zeros; None for a model of one layer."""
    inner = {name: part["size"] * (1 - part["nonzero"]["gradient"]) for name, part in layers.items() if name != MODEL}
    return max(inner, key=lambda name: inner[name]) if len(inner) > 1 else None


def _marks(ax: Axes, rows: list[tuple[str, str, Data]], kind: str, marks: dict[str, Mark]) -> None:
    """One mark for each vector in every row, one below the other, so that equal ones do not hide one another."""
    for place, (_, name, _) in enumerate(rows):
        if name == MODEL and place:
            ax.axhline(place - 0.5, color=style.GRID, linewidth=0.9, zorder=1)
    for number, (key, (label, hue, shape)) in enumerate(marks.items()):
        values = [max(part[kind][key], _LEAST) for *_, part in rows]
        places = [place + _APART * (number - (len(marks) - 1) / 2) for place in range(len(rows))]
        ax.plot(values, places, shape, color=hue, label=label, markersize=6, zorder=3, clip_on=False)
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)


def _log(ax: Axes) -> None:
    """A logarithmic axis of shares up to all, in per cent."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_xscale("log")
    ax.set_xlim(right=1)
    few = ax.get_xlim()[0] > 1e-3
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)) if few else LogLocator(100))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
