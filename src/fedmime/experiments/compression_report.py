"""Accuracy against bytes, as figures and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedmime.experiments.compression import WHOLE
from fedmime.experiments.reproduce_order import array
from fedmime.report import style
from fedmime.report.curves import WIDE, band, mean_interval
from fedmime.report.html import Section, Table
from fedmime.report.picture import Picture
from fedmime.report.words import goal, megabytes, unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Data = dict[str, Any]
_BELOW = 0.1  # how far below the best accuracy the curves begin
_DASHED = (0, (3, 1.6))


def sections(data: Data) -> list[Section]:
    """What the report shows."""
    s = data["setting"]
    told = (
        f"{s['task']}, {s['cohort']} clients a round, one local epoch, {s['rounds']} rounds, {s['seeds']} seeds, "
        "momentum 0.9 for MimeLite and Mime; every method and encoding at the best of its rates. Bytes are those of "
        "the packed messages, down and up, of all clients and rounds; accuracies are means of the last three "
        "evaluations."
    )
    return [
        Section("Accuracy against bytes", told, [_ends(data), _curves(data)], _table(data)),
        Section("How the rates were chosen", table=_tuning(data)),
    ]


def _by_method(data: Data) -> dict[str, list[Data]]:
    names = dict.fromkeys(row["method"] for row in data["rows"])
    return {name: [row for row in data["rows"] if row["method"] == name] for name in names}


def mean_score(row: Data) -> tuple[float, float]:
    """The mean accuracy over seeds and half its interval, NaN if a seed diverged."""
    mean, half = mean_interval(array([[score] for score in row["score"]]))
    return float(mean[0]), float(half[0])


def written(row: Data) -> str:
    """The mean accuracy over seeds with its interval, in words."""
    mean, half = mean_score(row)
    return "diverged" if np.isnan(mean) else f"{mean:.1%}" + (f" ± {half:.1%}" if half else "")


def _sent(row: Data) -> float:
    return row["bytes"][-1] if row["bytes"] else np.nan


def _ends(data: Data) -> Picture:
    """One panel a method: where the runs end, by what they have sent."""
    methods = _by_method(data)
    size, word = unit(np.nanmax([_sent(row) for row in data["rows"]]))
    with style.styled():
        figure = style.figure(WIDE, 3.7)
        panels = figure.subplots(1, len(methods), sharey=True, sharex=True, squeeze=False)[0]
        for ax, (method, rows) in zip(panels, methods.items(), strict=True):
            _draw_ends(ax, rows, size)
            ax.set(title=method, xlabel=f"{word} sent, down and up")
            ax.margins(x=0.16, y=0.09)
            log_axis(ax)
        panels[0].set_ylabel("test accuracy")
    told = (
        "Where runs of the same length end. Numbers are bits of a weight. Filled: so many up, and 8 down where fewer "
        "go up; hollow: the same both ways; cross: a tenth of the weights up, 8 bits down. Bars are 95 % intervals "
        "over seeds."
    )
    return Picture("compression", "Accuracy against bytes sent", figure, told, wide=True)


def log_axis(ax: Axes) -> None:
    """Accuracies in per cent over a logarithmic axis with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))


def _draw_ends(ax: Axes, rows: list[Data], size: float) -> None:
    hue = style.colour(rows[0]["method"])
    whole = [row for row in rows if row["fraction"] == 1]
    filled = [row for row in whole if row["down"] >= 8]
    hollow = [row for row in whole if row["down"] < 8]
    first = [row for row in filled if row["up"] == row["down"] == 8]
    for line, dash in ((filled, "-"), ([*first, *hollow], (0, (2.6, 1.3)))):
        ax.plot([_sent(row) / size for row in line], [mean_score(row)[0] for row in line], color=hue, ls=dash, lw=1.3)
    for row in rows:
        thinned, low = row["fraction"] < 1, row in hollow
        (x, y), half = (_sent(row) / size, mean_score(row)[0]), mean_score(row)[1]
        fill = style.PAPER if low else hue
        ax.errorbar(x, y, half, fmt="X" if thinned else "o", color=hue, mfc=fill, ms=6.5, capsize=2.5, lw=1.1, zorder=3)
        text = f"{100 * row['fraction']:g} %" if thinned else f"{row['up']}"
        place, aside = ((-7, -4), "right") if low else ((7, -12), "left") if thinned else ((0, 5), "center")
        look = {"textcoords": "offset points", "color": hue, "fontsize": 9, "fontweight": "bold", "zorder": 4}
        ax.annotate(text, (x, y if low or thinned else y + half), place, ha=aside, **look)


def _curves(data: Data) -> Picture:
    """The way there, without compression and with 8 bits; lines are named where they end without compression."""
    size, word = unit(np.nanmax([_sent(row) for row in data["rows"]]))
    looks = style.lines(_by_method(data))
    best = max(mean_score(row)[0] for row in data["rows"])
    low = max(0.0, best - _BELOW)
    with style.styled():
        figure = style.figure(WIDE, 3.8)
        ax, seen, ends = figure.subplots(), [], {}
        for row in data["rows"]:
            if row["up"] == row["down"] and row["up"] in (8, WHOLE) and row["bytes"]:
                x, rows = np.asarray(row["bytes"]) / size, array(row["accuracy"])
                look = looks[row["method"]]
                band(ax, x, rows, look if row["up"] == WHOLE else look | {"linestyle": _DASHED, "label": "_8 bits"})
                seen += x[rows.mean(axis=0) >= low].tolist()
                ends[row["up"]] = x[-1], rows[:, -1].mean()
        for bits, end in ends.items():
            text = f"{bits} bits"
            ax.annotate(text, end, (0, 11), textcoords="offset points", ha="right", fontsize=10, fontweight="bold")
        ax.set(xlabel=f"{word} sent, down and up", ylabel="test accuracy", title="32 and 8 bits both ways")
        ax.set_ylim(low, min(1.0, best + 0.018))
        log_axis(ax)
        ax.set_xlim(left=0.9 * min(seen))
        style.label_lines(ax)
    told = (
        "Test accuracy round by round, the mean over seeds with its 95 % interval. With 8 bits (dashed) it is the same "
        "curve, a quarter as far to the right."
    )
    return Picture("compression-curves", "32 and 8 bits, round by round", figure, told, wide=True)


def _table(data: Data) -> Table:
    target = data["setting"]["target"]
    head = ["method", "messages", "rate", "accuracy", "difference, points", "MB", "of uncompressed"]
    head += [f"rounds to {goal(target)}", "MB by then"]
    rows = []
    for method, found in _by_method(data).items():
        plain = found[0]
        for row in found:
            lost = "" if row is plain else points(mean_score(row)[0] - mean_score(plain)[0])
            at = row["rounds_to_target"]
            by_then = None if at is None else row["bytes"][row["after"].index(at)]
            cells = [method, row["encoding"], rate(row), written(row), lost, megabytes(_sent(row))]
            cells += [f"{_sent(row) / _sent(plain):.3f}", "–" if at is None else f"{at}", megabytes(by_then)]
            rows.append(cells)
    return Table(head, rows, "Rounds: until the mean over seeds is there.")


def points(share: float) -> str:
    """A difference of accuracies; what rounds to nothing has no sign of its own."""
    return f"{round(100 * share, 1) + 0.0:+.1f}"


def rate(row: Data) -> str:
    """The chosen rate."""
    return f"{row['eta']:g}" + (" (edge)" if row["at_edge"] else "")


def _tuning(data: Data) -> Table:
    rows = [[row["method"], row["encoding"], rate(row), by_rate(row)] for row in data["rows"]]
    return Table(["method", "messages", "chosen rate", "accuracy at every rate, mean over seeds"], rows)


def by_rate(row: Data) -> str:
    """The accuracy at every rate tried."""
    shown = {p["eta"]: "diverged" if p["score"] is None else f"{p['score']:.1%}" for p in row["tried"]}
    return "  ".join(f"{eta:g}: {score}" for eta, score in shown.items())
