"""Accuracy against ε, as a figure and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedmime.experiments.compression_report import by_rate, log_axis, mean_score, rate, written
from fedmime.experiments.privacy import RELEASES
from fedmime.experiments.reproduce_order import array
from fedmime.report import style
from fedmime.report.curves import WIDE, band, mean_interval
from fedmime.report.html import Section, Table
from fedmime.report.picture import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Data = dict[str, Any]
_APART = 3.0  # how much further right than the largest ε runs without privacy stand


def sections(data: Data) -> list[Section]:
    """What the report shows."""
    s = data["setting"]
    told = (
        f"{s['task']}, {s['clients']:,} clients of equal weight, each in a round with probability "
        f"{s['cohort']}/{s['clients']:,}, {s['steps']} local steps of {s['batch']} examples, {s['rounds']} rounds, "
        f"{s['seeds']} seeds, momentum 0.9 for MimeLite and Mime. ε is that of the whole run at δ = {s['delta']:g}, "
        "for one client more or less; clipping norms adapt to the median. Every method and ε is at the best of "
        f"{len(s['rates'])} rates at the first seed, a choice that is not paid for."
    )
    return [Section("Accuracy against ε", told, [_picture(data)], _table(data))]


def _by_method(data: Data) -> dict[str, list[Data]]:
    names = dict.fromkeys(row["method"] for row in data["rows"])
    return {name: [row for row in data["rows"] if row["method"] == name] for name in names}


def _picture(data: Data) -> Picture:
    with style.styled():
        figure = style.figure(WIDE, 3.8)
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _accuracies(left, data)
        _noise(right, data)
        for ax in (left, right):
            style.label_lines(ax)
    told = (
        "Left: test accuracy, the mean over seeds with its 95 % interval. Right: the noise that each method needs, as "
        "a multiple of the clipping norm. FedAvg releases one sum a round, the mean update; MimeLite and Mime also "
        "release c, so that both of their sums get √2 times the noise."
    )
    return Picture("privacy", "Accuracy against ε", figure, told, wide=True)


def _accuracies(ax: Axes, data: Data) -> None:
    private = sorted({row["asked"] for row in data["rows"] if row["asked"] is not None})
    without = _APART * private[-1]
    found = _by_method(data)
    for name, look in style.lines(found).items():
        rows = {row["asked"]: array([[score] for score in row["score"]]) for row in found[name]}
        noisy = np.concatenate([rows[epsilon] for epsilon in private], axis=1)
        band(ax, private, noisy, look | {"label": "_private", "marker": "o", "markevery": 1})
        mean, half = mean_interval(rows[None])
        gap = [private[-1], without], [noisy[:, -1].mean(), mean[0]]
        ax.plot(*gap, color=look["color"], linestyle=(0, (1, 2)), linewidth=1.1, label=look["label"])
        ax.errorbar([without], mean, half, fmt="D", color=look["color"], capsize=2.5, label="_without")
    log_axis(ax)
    ax.set_xticks([*private, without], [*(f"{epsilon:g}" for epsilon in private), "none"])
    ax.set(title="Test accuracy", xlabel="ε of the whole run; none: without privacy")


def _noise(ax: Axes, data: Data) -> None:
    found = _by_method(data)
    private = sorted({row["asked"] for row in data["rows"] if row["asked"] is not None})
    shown = {k: [name for name in found if RELEASES[name] == k] for k in sorted({RELEASES[name] for name in found})}
    for releases, names in shown.items():
        z = [next(row for row in found[names[-1]] if row["asked"] == each)["noise_multiplier"] for each in private]
        label = f"{releases} release{'s' if releases > 1 else ''}"
        ax.plot(private, z, color=style.colour(names[-1]), marker="o", label=label)
    log_axis(ax)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_xticks(private, [f"{epsilon:g}" for epsilon in private])
    ax.set_ylim(bottom=0)
    ax.set(title="Noise multiplier z", xlabel="ε of the whole run")


def _table(data: Data) -> Table:
    head = ["method", "ε", "releases a round", "noise z", "rate", "accuracy", "lost to privacy, points", "by rate"]
    rows = []
    for name, found in _by_method(data).items():
        plain = next((row for row in found if row["asked"] is None), None)
        for row in found:
            lost = "" if plain is None or row is plain else f"{100 * (mean_score(plain)[0] - mean_score(row)[0]):.1f}"
            private = row["asked"] is not None
            spent, z = (f"{row['epsilon']:.2f}", f"{row['noise_multiplier']:.3f}") if private else ("none", "–")
            rows.append([name, spent, f"{RELEASES[name]}", z, rate(row), written(row), lost, by_rate(row)])
    return Table(head, rows, "ε: what the ledger of the run says after the last round.")
