"""Methods over several seeds: means with their intervals, one panel for each comparison, several panels on a page."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from fedmime.report import html, settings, style
from fedmime.report.bars import rounds_over_seeds
from fedmime.report.curves import mean_interval, with_intervals
from fedmime.report.headline import ACCURACY, megabytes_after, problems
from fedmime.report.html import Section, Table
from fedmime.report.picture import Picture
from fedmime.report.recorded import COMPARISON, Recorded, comparison, load_all
from fedmime.report.target import Target, asked
from fedmime.report.words import NOTHING, listed, megabytes, short

_BELOW = 10.0  # by how much a figure of losses goes below its target
_ABOVE = 5.0  # errors that a figure of accuracies shows, in those at the target


class Row(NamedTuple):
    """A method over its seeds; None where a seed's run did not reach the target or did not measure."""

    label: str
    rate: float | None
    server_rate: float | None
    rounds: int  # of its longest run
    rounds_to_target: tuple[int | None, ...]
    accuracy: tuple[float | None, ...]  # after the last round
    megabytes_to_target: tuple[float | None, ...]

    @property
    def mean(self) -> tuple[float, float] | None:
        """Rounds to the target, and half the width of their 95 % interval; None unless every seed got there."""
        return _mean(self.rounds_to_target)

    def facts(self) -> dict[str, Any]:
        """As JSON can write it."""
        mean, half = self.mean or (None, None)
        return self._asdict() | {"mean_rounds_to_target": mean, "interval": half}


@dataclasses.dataclass(frozen=True)
class Panel:
    """A comparison of methods on one task."""

    title: str
    runs: Sequence[Recorded]  # of any seed; those of one method carry the same label in their configuration
    caption: str = ""
    target: Target | None = None

    @property
    def methods(self) -> dict[str, list[Recorded]]:
        """The runs of each method, methods in the order of their first runs."""
        found: dict[str, list[Recorded]] = {}
        for run in self.runs:
            found.setdefault(_method(run), []).append(run)
        return found

    @property
    def seeds(self) -> int:
        """The runs of a method, at most."""
        return max(map(len, self.methods.values()))

    def rows(self) -> list[Row]:
        """A row for every method."""
        return [self._row(label, runs) for label, runs in self.methods.items()]

    def _row(self, label: str, runs: list[Recorded]) -> Row:
        reached = [None if self.target is None else self.target.rounds(run.history) for run in runs]
        first = runs[0].config
        server = first.get("eta_server")
        return Row(
            label,
            first.get("eta"),
            None if server == 1 else server,
            max(len(run.history.get("round", ())) for run in runs),
            tuple(reached),
            tuple(run.last(ACCURACY) for run in runs),
            tuple(megabytes_after(run, rounds) for run, rounds in zip(runs, reached, strict=True)),
        )


def several(runs: Sequence[Recorded]) -> bool:
    """Whether runs are better told as means: some differ in their seed only, or aim at a training loss."""
    methods = [(run.config.get("task"), _method(run)) for run in runs if "seed" in run.config]
    return len(set(methods)) < len(methods) or any(run.config.get("target_gap") is not None for run in runs)


def remember(directory: Path, title: str, caption: str, methods: Sequence[str]) -> None:
    """Write what runs in a directory do not say themselves."""
    told = {"title": title, "caption": caption, "methods": list(methods)}
    (directory / COMPARISON).write_text(json.dumps(told) + "\n", encoding="utf-8")


def load(path: str | os.PathLike[str], target: Target | None = None) -> Panel:
    """The panel of a directory with runs; the target is by default what its runs were asked."""
    directory = Path(path)
    return make(directory, load_all([directory]), target)


def make(directory: Path, runs: Sequence[Recorded], target: Target | None = None) -> Panel:
    """The panel of runs in a directory, as what is written there tells it."""
    told = comparison(directory)
    order = {label: place for place, label in enumerate(told.get("methods", ()))}
    ordered = sorted(runs, key=lambda run: order.get(_method(run), len(order)))
    targets = {asked(run.config) for run in runs}
    common = targets.pop() if len(targets) == 1 else None
    title = str(told.get("title") or directory.resolve().name)
    return Panel(title, ordered, str(told.get("caption") or ""), common if target is None else target)


def heading(target: Target | None) -> str:
    """Of the column that counts rounds."""
    if target is None:
        return "rounds to target"
    return f"rounds to {100 * target.value:g} %" if target.optimum is None else f"rounds to within {target.value:g}"


def cells(row: Row) -> list[str]:
    """A method's row as text: rate, rounds to the target, accuracy, MB to the target, rounds of each seed."""
    reached = row.rounds_to_target
    each = ", ".join(NOTHING if rounds is None else str(rounds) for rounds in reached)
    rate = short(row.rate) + ("" if row.server_rate is None else f" (×{short(row.server_rate)})")
    sent = _mean(row.megabytes_to_target)
    return [
        rate,
        mean_rounds(row),
        _plus_minus(_mean([None if value is None else 100 * value for value in row.accuracy]), ".1f"),
        NOTHING if sent is None else megabytes(1e6 * sent[0]),
        each if any(rounds is not None for rounds in reached) else NOTHING,
    ]


def columns(target: Target | None) -> list[str]:
    """The headings of `cells`."""
    return ["rate", heading(target), "accuracy, %", "MB to target", "rounds by seed"]


def mean_rounds(row: Row) -> str:
    """The mean with its interval; where some seeds never got there, how many did."""
    reached = sum(rounds is not None for rounds in row.rounds_to_target)
    if row.mean is None:
        many = len(row.rounds_to_target)
        return f"in {reached} of {many} seeds" if reached else f"not in {row.rounds:,}"
    return _plus_minus(row.mean, ".0f")


def sentence(panel: Panel) -> str:
    """Who needed how many rounds in the mean, in words."""
    rows = panel.rows()
    known = sorted((row.mean[0], row.label) for row in rows if row.mean is not None)
    if panel.target is None or not known:
        return ""
    told = [f"{label} {rounds:.0f}" for rounds, label in known]
    told[0] = f"{known[0][1]} took {known[0][0]:.0f} rounds"
    over = f", in the mean over {panel.seeds} seeds" if panel.seeds > 1 else ""
    found = f"To reach {panel.target.words()}, {listed(told)}{over}."
    missed = [row for row in rows if row.mean is None]
    never = [row.label for row in missed if not any(row.rounds_to_target)]
    some = [row.label for row in missed if any(row.rounds_to_target)]
    for labels, verdict in ((some, "did so with some seeds only"), (never, "did not in all rounds")):
        found += f" {listed(labels)} {verdict}." if labels else ""
    return found


def pictures(panel: Panel, stem: str) -> list[Picture]:
    """Curves with the target, and rounds to it."""
    target, methods = panel.target, panel.methods
    if target is None:
        return []
    mean = "Mean" if target.optimum is None else "Geometric mean"
    over = f"{mean} over seeds with its 95 % interval" if panel.seeds > 1 else "One seed"
    curves = _curves(methods, target)
    found = []
    if curves is not None:
        share = target.optimum is None
        what = "Test accuracy by rounds" if share else "Training loss above its optimum by rounds"
        limits = (max(0.0, 1 - _ABOVE * (1 - target.value)), None) if share else (target.value / _BELOW, None)
        figure = with_intervals(curves[1], curves[0], what, target.value, share, True, limits)
        found.append(Picture(f"{stem}-curves", what, figure, f"{over}; dashed: the target.", wide=True))
    title = f"Rounds to {target.words()}"
    bars = [(row.label, row.rounds_to_target, row.rounds, mean_rounds(row)) for row in panel.rows()]
    figure = rounds_over_seeds(bars, title)
    told = "Bars: means over seeds; dots: single seeds." if panel.seeds > 1 else ""
    return [*found, Picture(f"{stem}-rounds", title, figure, told, wide=True)]


def write(
    path: str | os.PathLike[str], title: str, panels: Sequence[Panel], drawn: Sequence[Sequence[Picture]] | None = None
) -> Path:
    """Write one page of panels; gives its path. `drawn` are the panels' pictures if they have been drawn already."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    shown = draw(panels) if drawn is None else drawn
    titles = [panel.title if panel.title != title else "Rounds to the target" for panel in panels]
    sections = [_section(*each) for each in zip(titles, panels, shown, strict=True)]
    runs = [run for panel in panels for run in panel.runs]
    firsts = [dataclasses.replace(panel.runs[0], label=panel.title) for panel in panels]
    looks = {label: look for panel in panels for label, look in style.lines(panel.methods).items()}
    file.write_text(
        html.render(
            title,
            sections,
            looks=looks,
            problems=[(run.label, found) for run in runs if (found := problems(run))],
            shared=settings.shared(runs),
            provenance=settings.provenance(firsts),
            commands=settings.commands(firsts),
        ),
        encoding="utf-8",
    )
    return file


def draw(panels: Sequence[Panel]) -> list[list[Picture]]:
    """The pictures of each panel."""
    return [pictures(panel, f"panel{place}") for place, panel in enumerate(panels, start=1)]


def _section(title: str, panel: Panel, drawn: Sequence[Picture]) -> Section:
    rows = panel.rows()
    known = [row.mean[0] if row.mean else np.inf for row in rows]
    best = frozenset({(int(np.argmin(known)), 2)}) if np.isfinite(known).any() else frozenset()
    paragraphs = [("about", settings.about(panel.runs)), ("lead", sentence(panel)), ("", panel.caption)]
    text = Markup("").join(Markup('<p class="{}">{}</p>').format(*each) for each in paragraphs if each[1])
    told = "Rounds: mean over seeds ± half its 95 % interval. " if panel.seeds > 1 else ""
    told += "" if all(row.server_rate is None for row in rows) else "Rate (×server rate). "
    caption = f"{told}MB: what the server and all clients together have sent when the target is reached."
    table = Table(["method", *columns(panel.target)], [[row.label, *cells(row)] for row in rows], caption, best)
    return Section(title, text, drawn, table)


def _curves(methods: dict[str, list[Recorded]], target: Target) -> tuple[np.ndarray, dict[str, np.ndarray]] | None:
    """The rounds after which all runs were measured, and each method's [seeds, rounds] there."""
    each = {label: [run.series(target.metric) for run in runs] for label, runs in methods.items()}
    rounds = [set(at.tolist()) for runs in each.values() for at, _ in runs]
    common = np.asarray(sorted(set.intersection(*rounds)))
    if not len(common):
        return None
    curves = {
        label: np.stack([values[np.isin(at, common)] for at, values in runs]) - (target.optimum or 0.0)
        for label, runs in each.items()
    }
    if target.optimum is not None:  # rounding may take a loss below its optimum, where a logarithm ends
        floor = target.value / _BELOW**2
        curves = {label: np.maximum(rows, floor) for label, rows in curves.items()}
    return common, curves


def _method(run: Recorded) -> str:
    return str(run.config.get("label", run.label))


def _mean(values: Sequence[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    mean, half = mean_interval(np.asarray(known, float)[:, None])
    return float(mean[0]), float(half[0])


def _plus_minus(mean: tuple[float, float] | None, form: str) -> str:
    if mean is None:
        return NOTHING
    return f"{mean[0]:{form}}" + (f" ± {mean[1]:{form}}" if mean[1] else "")
