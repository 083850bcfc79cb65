"""Bars and histograms: rounds to the target, accuracies of clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedmime.report import style
from fedmime.report.curves import WIDE, WIDTH
from fedmime.report.headline import Headline
from fedmime.report.recorded import Recorded
from fedmime.report.words import goal, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def rounds_to_target(rows: Sequence[Headline], target: float, title: str) -> Figure:
    """One bar a run, its number beside it; a hatched bar as long as the run for one that never got there."""
    with style.styled():
        figure = style.figure(WIDTH, 0.9 + 0.36 * len(rows))
        ax = figure.subplots()
        for place, row in enumerate(rows):
            reached = row.rounds_to_target is not None
            length = row.rounds_to_target if row.rounds_to_target is not None else row.rounds
            hue = style.colour(row.label)
            look = {"color": hue} if reached else {"facecolor": "none", "edgecolor": hue, "hatch": "////"}
            ax.barh(place, length, 0.62, **look)  # pyright: ignore[reportArgumentType]
            text = f"{length:,}" if reached else f"not in {row.rounds:,}"
            ax.annotate(text, (length, place), (5, 0), textcoords="offset points", va="center", fontsize=9)
        _one_a_row(ax, [row.label for row in rows], title)
        ax.set_xlabel(f"rounds until the test accuracy is {goal(target)}")
    return figure


def rounds_over_seeds(rows: Sequence[tuple[str, Sequence[int | None], int, str]], title: str) -> Figure:
    """One bar for each label, rounds by seed, rounds run and text: the mean; hatched if a seed has no number."""
    with style.styled():
        figure = style.figure(WIDE, 0.9 + 0.36 * len(rows))
        ax = figure.subplots()
        for place, (label, reached, rounds, text) in enumerate(rows):
            known = [each for each in reached if each is not None]
            whole, hue = len(known) == len(reached), style.colour(label)
            length = float(np.mean(known)) if whole else rounds
            look = {"color": hue, "alpha": 0.55} if whole else {"facecolor": "none", "edgecolor": hue, "hatch": "////"}
            ax.barh(place, length, 0.62, **look)  # pyright: ignore[reportArgumentType]
            ax.plot(known, [place] * len(known), "o", color=hue, markersize=3.5)
            beyond = max([length, *known])
            ax.annotate(text, (beyond, place), (6, 0), textcoords="offset points", va="center", fontsize=9)
        _one_a_row(ax, [label for label, *_ in rows], title)
        ax.set_xlabel("rounds")
    return figure


def _one_a_row(ax: Axes, labels: Sequence[str], title: str) -> None:
    """Axes of horizontal bars, named at their left, from the top down."""
    ax.set_yticks(range(len(labels)), [style.shown(label) for label in labels])
    ax.tick_params(axis="y", length=0, labelcolor=style.INK)
    ax.invert_yaxis()
    ax.margins(x=0.14)
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    ax.set_title(title)


def client_accuracies(runs: Sequence[Recorded], title: str) -> Figure:
    """How accuracy is spread over clients, one row a run; the worst tenth of the clients is drawn full."""
    with style.styled():
        figure = style.figure(WIDTH, 0.9 + 0.72 * len(runs))
        rows = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
        for ax, run in zip(rows, runs, strict=True):
            _histogram(ax, run)
        rows[0].set_title(title)
        rows[-1].set_xlabel("accuracy on a client's own examples")
        rows[-1].set_xticks(np.linspace(0, 1, 6), [f"{x} %" for x in range(0, 101, 20)])
        rows[-1].set_xlim(-0.005, 1.005)
    return figure


def _histogram(ax: Axes, run: Recorded) -> None:
    accuracy = np.asarray(run.clients["accuracy"], float)
    accuracy = accuracy[np.isfinite(accuracy)]
    worst = np.sort(accuracy)[: max(1, len(accuracy) // 10)]
    edges, hue = [k / 40 for k in range(41)], style.colour(run.label)
    ax.hist(accuracy, edges, color=hue, alpha=0.35, linewidth=0, histtype="stepfilled")
    ax.hist(worst, edges, color=hue, linewidth=0, histtype="stepfilled")
    ax.axvline(float(accuracy.mean()), color=style.INK, linewidth=1)
    told = f"mean {percent(float(accuracy.mean()))}, worst tenth {percent(float(worst.mean()))}"
    x, aside = (0.005, "left") if accuracy.mean() > 0.5 else (0.995, "right")
    look = {"transform": ax.transAxes, "ha": aside, "va": "top"}
    ax.text(x, 0.98, style.shown(run.label), color=hue, fontweight="bold", fontsize=9, **look)
    ax.text(x, 0.66, told, fontsize=8.5, **look)
    ax.set_yticks([])
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
