"""Curves of runs: a figure against rounds or bytes, one line a run, or a mean with its interval over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmime.report import style
from fedmime.report.recorded import Recorded
from fedmime.report.words import goal, unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 5.4, 3.5  # inches: fills a phone at its own size and half a page on a screen
WIDE = 9.6  # fills the page
_LOG_SPAN = 30.0  # a figure that spans more than this is drawn on a logarithmic axis
_LOG_BYTES = 20.0  # likewise when one run sends that many times what another does


def against_rounds(runs: Sequence[Recorded], name: str, title: str, target: float | None = None) -> Figure:
    """One line a run over its rounds."""
    return _curves({run.label: run.series(name) for run in runs}, title, "rounds", target, name)


def against_bytes(runs: Sequence[Recorded], name: str, title: str, target: float | None = None) -> Figure:
    """One line a run over the bytes that it has sent, down and up, all clients together."""
    lines = {}
    for run in runs:
        rounds, values = run.series(name)
        sent = run.history.get("bytes_total", np.full(len(run.history.get("round", ())), np.nan))
        lines[run.label] = sent[np.isin(run.history.get("round", ()), rounds - 1)], values
    ends = [float(np.nanmax(x)) for x, _ in lines.values() if np.isfinite(x).any()]
    size, word = unit(max(ends, default=1.0))
    lines = {label: (x / size, y) for label, (x, y) in lines.items()}
    wide = bool(ends) and max(ends) > _LOG_BYTES * min(ends) > 0
    return _curves(lines, title, f"{word} sent, down and up", target, name, log_x=wide)


def _curves(
    found: Mapping[str, tuple[np.ndarray, np.ndarray]],
    title: str,
    x_label: str,
    target: float | None,
    name: str,
    log_x: bool = False,
) -> Figure:
    with style.styled():
        figure = style.figure(WIDTH, HEIGHT)
        ax = figure.subplots()
        looks = style.lines(found)
        for label, (x, y) in found.items():
            look = looks[label] if len(x) > 1 else {**looks[label], "marker": "o"}
            ax.plot(x, y, **look)
        _axes(ax, title, x_label, name, [y for _, y in found.values()])
        if log_x:
            ax.set_xscale("log")
        if target is not None:
            mark_target(ax, target)
        style.label_lines(ax)
    return figure


def mark_target(ax: Axes, target: float, share: bool = True) -> None:
    """A thin line at what is to be reached; `label_lines` names it as it names the others."""
    label, dashes = f"target {goal(target) if share else f'{target:g}'}", (0, (4, 3))
    ax.axhline(target, color=style.MUTED, linewidth=0.9, linestyle=dashes, label=label, zorder=1)


def with_intervals(
    seeds: Mapping[str, np.ndarray],
    rounds: np.ndarray,
    title: str,
    target: float | None = None,
    share: bool = True,
    wide: bool = False,
    limits: tuple[float | None, float | None] | None = None,
) -> Figure:
    """The mean over seeds (rows) after the given rounds (columns) for each label, with its 95 % interval as a band."""
    with style.styled():
        figure = style.figure(WIDE if wide else WIDTH, HEIGHT)
        ax = figure.subplots()
        for label, look in style.lines(seeds).items():
            band(ax, rounds, np.asarray(seeds[label], float), look, log=not share)
        _axes(ax, title, "rounds", "accuracy" if share else "", [np.asarray(rows, float) for rows in seeds.values()])
        if target is not None:
            mark_target(ax, target, share)
        if limits is not None:
            ax.set_ylim(*limits)
        style.label_lines(ax)
    return figure


def band(ax: Axes, x: Any, rows: np.ndarray, look: dict[str, Any], log: bool = False) -> None:
    """The mean of rows as a line, its 95 % interval behind it; with `log` those of their logarithms."""
    mean, half = mean_interval(np.log(rows) if log else rows)
    low, middle, high = (np.exp(each) if log else each for each in (mean - half, mean, mean + half))
    ax.plot(x, middle, **look)
    ax.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0)


def mean_interval(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each column and half the width of its 95 % interval by Student's t; no width for a single row."""
    from scipy.stats import t

    rows = np.atleast_2d(rows)
    mean, many = rows.mean(axis=0), len(rows)
    if many < 2:
        return mean, np.zeros_like(mean)
    return mean, t.ppf(0.975, many - 1) * rows.std(axis=0, ddof=1) / np.sqrt(many)


def _axes(ax: Axes, title: str, x_label: str, name: str, values: Sequence[np.ndarray]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.set_title(title)
    ax.set_xlabel(x_label)
    if x_label == "rounds":
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins="auto", steps=[1, 2, 2.5, 5, 10]))
    if name.endswith("accuracy"):
        ax.yaxis.set_major_formatter(FuncFormatter(_per_cent))
        return
    known = np.concatenate([v.ravel() for v in values]) if len(values) else np.empty(0)
    known = known[np.isfinite(known)]
    if len(known) and known.min() > 0 and known.max() > _LOG_SPAN * known.min():
        ax.set_yscale("log")
    elif len(known) and known.min() >= 0:
        ax.set_ylim(bottom=0)


def _per_cent(value: float, _: Any) -> str:
    return f"{100 * value:.3g} %"
