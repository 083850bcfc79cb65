"""A sweep on disk: JSON, CSV, a curve or heat map, one HTML page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmime.experiments import tasks
from fedmime.experiments.grid import words
from fedmime.experiments.sweep import Swept
from fedmime.files import whole_file
from fedmime.report import html, style
from fedmime.report.heatmap import heat_map
from fedmime.report.picture import Picture, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(swept: Swept, out: Path) -> list[Path]:
    """Write everything about a sweep; gives the paths."""
    out.mkdir(parents=True, exist_ok=True)
    facts = swept.facts()
    write_json(out / "sweep.json", facts)
    with whole_file(out / "sweep.csv") as temporary:
        temporary.write_text(_csv(swept), encoding="utf-8")
    drawn = pictures(swept)
    figures = [path for each in drawn for path in save(each.figure, out / each.stem)]
    table = html.Table([*swept.grid, swept.metric, "rounds", "what became of it"], rows(swept), marked=_marked(swept))
    section = html.Section("All points", notice(swept), drawn, table)
    page = html.write(
        out / "sweep.html", f"Sweep of {swept.label} on {tasks.get(swept.setting.task).name}", sections=[section]
    )
    return [out / "sweep.json", out / "sweep.csv", *figures, page]


def write_json(path: Path, facts: Any) -> None:
    """Write strict JSON, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(facts, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def rows(swept: Swept) -> list[list[str]]:
    """The table of a sweep as text: values, accuracy, rounds, what became of the point."""
    found = []
    for trial in swept.trials:
        score = swept.score(trial)
        fate = (
            "diverged"
            if trial.lost(swept.rounds)
            else "stopped by halving"
            if trial.done < swept.rounds
            else "finished"
        )
        found.append(
            [*(f"{v:.3g}" for v in trial.values.values()), swept.words(score), f"{min(trial.done, swept.rounds)}", fate]
        )
    return found


def notice(swept: Swept) -> str:
    """The best point in words, with a warning where it lies on the grid's edge."""
    if swept.lost:
        return "Every point diverged; lower the rates."
    best = swept.best
    cost = f"The sweep cost {swept.runs:.2f} full runs."
    told = f"Best: {words(best.values)} with {_unit(swept)}{swept.words(swept.score(best))}. {cost}"
    if swept.at_edge:
        told += (
            f" The best lies on the edge of the grid ({', '.join(swept.at_edge)}): a wider one may hold a better point."
        )
    return told


def _unit(swept: Swept) -> str:
    return "" if swept.metric == "accuracy" else "a test loss of "


def pictures(swept: Swept) -> list[Picture]:
    """Accuracy or loss along one axis; a heat map over two; for more, one over the last two, the best of the others."""
    wide = [name for name, values in swept.grid.items() if len(values) > 1]
    if not wide:
        return []
    title = f"{swept.label}, {swept.rounds} rounds"
    if len(wide) == 1:
        return [Picture("sweep", title, _line(swept, wide[0], title))]
    row, column = wide[-2:]
    rest = "; the best over the other axes" if len(wide) > 2 else ""
    figure = heat_map(best_by(swept, row, column), swept.grid[row], swept.grid[column], title, row, column)
    return [Picture("sweep", title, figure, f"{swept.metric.capitalize()}{rest}; the best point boxed.")]


def best_by(swept: Swept, row: str, column: str) -> np.ndarray:
    """The best accuracy, or loss, at each pair of values of two axes, NaN where all points diverged."""
    values = np.full((len(swept.grid[row]), len(swept.grid[column])), np.nan)
    for trial in swept.trials:
        place = swept.grid[row].index(trial.values[row]), swept.grid[column].index(trial.values[column])
        better = np.fmax if swept.metric == "accuracy" else np.fmin
        values[place] = better(values[place], np.nan if (score := swept.score(trial)) is None else score)
    return values


def _line(swept: Swept, axis: str, title: str) -> Figure:
    with style.styled():
        figure = style.figure()
        ax = figure.subplots()
        whole = [t for t in swept.trials if not t.lost(swept.rounds) and t.done >= swept.rounds]
        early = [t for t in swept.trials if not t.lost(swept.rounds) and t.done < swept.rounds]
        look = style.line(swept.label) | {"marker": "o", "markevery": 1}
        _points(ax, swept, whole, axis, look)
        _points(ax, swept, early, axis, look | {"linestyle": "", "fillstyle": "none", "label": "stopped early"})
        lost = [t.values[axis] for t in swept.trials if t.lost(swept.rounds)]
        ax.plot(lost, [0.0] * len(lost), "x", color=style.MUTED, label="diverged")
        if all(value > 0 for value in swept.grid[axis]):
            ax.set_xscale("log")
        ax.set(title=title, xlabel=axis, ylabel=f"test {swept.metric}")
        if early or lost:
            ax.legend()
    return figure


def _points(ax: Any, swept: Swept, trials: Sequence[Any], axis: str, look: dict[str, Any]) -> None:
    chosen = sorted(trials, key=lambda trial: trial.values[axis])
    ax.plot([t.values[axis] for t in chosen], [t.measured(swept.rounds) for t in chosen], **look)


def _marked(swept: Swept) -> frozenset[tuple[int, int]]:
    if swept.lost:
        return frozenset()
    return frozenset({(swept.trials.index(swept.best), len(swept.grid))})


def _csv(swept: Swept) -> str:
    held = io.StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow([*swept.grid, swept.metric, "rounds", "diverged"])
    for trial in swept.trials:
        score = swept.score(trial)
        writer.writerow([*trial.values.values(), "" if score is None else score, trial.done, trial.diverged])
    return held.getvalue()
