"""How many local steps help, as figures and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedmime.experiments import ablation_report
from fedmime.experiments.reproduce_order import array
from fedmime.report import style
from fedmime.report.curves import band
from fedmime.report.html import Section, Table
from fedmime.report.picture import Picture

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

Data = dict[str, Any]


def sections(data: Data) -> list[Section]:
    """What the report shows."""
    s = data["setting"]
    once = (
        f"{s['task']}, {s['cohort']} clients, from the model that {s['before']} rounds of FedAvg with one local epoch "
        f"lead to. The training loss there is {data['before']:.3f}."
    )
    followed = (
        f"Local steps of {s['clients']} clients from the same model, β = 0. A client steps along ∇fᵢ(y), or with the "
        "correction of Mime along ∇fᵢ(y) − ∇fᵢ(x) + ∇f(x), where ∇f(y) is meant; f is the mean over these clients."
    )
    runs = data["runs"]
    few = (
        f"{runs['setting']['cohort']} clients a round, one local epoch, {runs['setting']['rounds']} rounds, "
        f"{runs['setting']['seeds']} seeds, momentum β = 0.9 where β = 0 is not said; rates chosen over "
        f"{runs['setting']['tuning']} rounds."
    )
    shown = ablation_report.pictures(runs, {"steps-runs": ("One local epoch", tuple(runs["curves"]))})
    return [
        Section("One round, more and more local steps", once, [_after_a_round(data)], _best(data)),
        Section("What becomes of the correction", followed, [_errors(data)], _stale(data)),
        Section("Long runs with one local epoch", few, shown, ablation_report.rounds(runs)),
        Section("On the way", "Rounds until the mean accuracy is reached.", table=ablation_report.marks(runs)),
        Section("How the rates were chosen", table=ablation_report.tuning(runs)),
    ]


def _after_a_round(data: Data) -> Picture:
    found, before = data["round"], data["before"]

    def draw(ax: Axes, place: int) -> None:
        for name, look in style.lines(found).items():
            band(ax, data["setting"]["marks"], array(found[name][place]), look)
        ax.axhline(before, color=style.MUTED, linewidth=0.9, linestyle=(0, (4, 3)), label="before")
        ax.set_ylim(*_range(found, before))

    told = "Training loss after one round of K local steps, mean over cohorts with its 95 % interval."
    title = "Training loss after one round"
    return Picture("steps-round", title, _panels(data, draw, "training loss"), told, wide=True)


def _range(found: Data, before: float) -> tuple[float, float]:
    """Losses up to half above where the round began; what explodes leaves the picture."""
    low = min(float(np.nanmin(array(rows))) for rates in found.values() for rows in rates)
    return low - 0.05 * before, 1.5 * before


def _errors(data: Data) -> Picture:
    def draw(ax: Axes, place: int) -> None:
        path = data["path"][place]["methods"]["Mime"]
        shown = {"FedAvg: plain": path["plain"], "Mime: corrected": path["corrected"]}
        for name, look in style.lines(shown).items():
            ax.plot(data["setting"]["marks"], shown[name], **look)
        ax.set_ylim(0, 2 * path["plain"][0])

    told = "How far a client's direction is from ∇f(y), root mean square over clients, along the path of Mime."
    return Picture("steps-errors", "Error of a client's direction", _panels(data, draw, "error"), told, wide=True)


def _panels(data: Data, draw: Callable[[Axes, int], None], label: str) -> Any:
    rates = data["setting"]["rates"]
    with style.styled():
        figure = style.figure(1.2 + 4.2 * len(rates), 3.4)
        panels = figure.subplots(1, len(rates), sharey=True, squeeze=False)[0]
        for place, (ax, eta) in enumerate(zip(panels, rates, strict=True)):
            draw(ax, place)
            ax.set(title=f"η = {eta:g}", xlabel="local steps K", xscale="log")
            ax.xaxis.set_major_formatter("{x:g}")
        panels[0].set_ylabel(label)
        for ax in panels:
            style.label_lines(ax, 8.5)
    return figure


def _best(data: Data) -> Table:
    marks, rows = data["setting"]["marks"], []
    for name, rates in data["round"].items():
        for eta, cohorts in zip(data["setting"]["rates"], rates, strict=True):
            mean = np.nan_to_num(array(cohorts).mean(axis=0), nan=np.inf)
            at = int(np.argmin(mean))
            rows.append([name, f"{eta:g}", f"{marks[at]}", f"{marks[at] * eta:.2g}", f"{mean[at]:.3f}", _last(mean)])
    return Table(["method", "rate", "best K", "Kη there", "loss there", f"loss at K = {marks[-1]}"], rows)


def _last(mean: np.ndarray) -> str:
    return f"{mean[-1]:.3f}" if np.isfinite(mean[-1]) else "not finite"


def _stale(data: Data) -> Table:
    marks, rows = data["setting"]["marks"], []
    for eta, path in zip(data["setting"]["rates"], data["path"], strict=True):
        mime = path["methods"]["Mime"]
        ratio = np.asarray(mime["corrected"]) / np.asarray(mime["plain"])
        lowest = int(np.argmin(mime["loss"]))
        rows.append([f"{eta:g}", *(f"{r:.2f}" for r in ratio), f"{mime['loss'][lowest]:.3f} (K = {marks[lowest]})"])
    caption = "Corrected error over plain error after K steps of Mime, and where a client's own y has the lowest f."
    return Table(["rate", *(f"K = {mark}" for mark in marks), "lowest f(y)"], rows, caption)
