"""The ablation as figures and tables, the paper's findings beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmime.experiments.ablation import REFERENCE, SEVEN
from fedmime.experiments.reproduce_order import array
from fedmime.report.curves import mean_interval, with_intervals
from fedmime.report.html import Section, Table
from fedmime.report.picture import Picture

Data = dict[str, Any]
PAPER = {"Mime": "about 7×", "MimeLite": "about 7×", REFERENCE: "1×"}
PANELS = {
    "ablation": ("Seven methods", SEVEN),
    "ablation-momentum": ("With and without momentum", ("Mime", "Mime, β = 0", "FedAvg", "FedAvg, β = 0")),
    "ablation-state": ("Fixed or locally updated momentum", ("Mime", "Loc-Mime")),
}


def sections(data: Data) -> list[Section]:
    """What the report shows."""
    facts = data["setting"]
    told = (
        f"{facts['task']}, {facts['cohort']} clients a round, {facts['epochs']} local epochs, "
        f"{facts['rounds']} rounds, {facts['seeds']} seeds; "
        f"every method's rate chosen over {facts['tuning']} rounds of its own sweep. "
        f"The mark is the highest mean accuracy of {REFERENCE}, {data['target']:.2%}."
    )
    return [
        Section("Rounds to the accuracy of FedAvg", told, pictures(data, PANELS), rounds(data, PAPER)),
        Section("The paper's findings beside ours", table=_findings(data)),
        Section("On the way", "Rounds until the mean accuracy is reached.", table=marks(data)),
        Section("How the rates were chosen", table=tuning(data)),
    ]


def pictures(data: Data, panels: Mapping[str, tuple[str, Sequence[str]]]) -> list[Picture]:
    """Accuracies over rounds: of each stem its title and methods. The first is wide and shows the mark."""
    after = np.asarray(data["after"])
    curves = {name: array(rows) for name, rows in data["curves"].items()}
    found: list[Picture] = []
    for stem, (title, names) in panels.items():
        if all(name in curves for name in names):
            first = not found
            shown = {name: curves[name] for name in names}
            figure = with_intervals(shown, after, title, round(data["target"], 4) if first else None, wide=first)
            told = "Mean test accuracy over seeds with its 95 % interval."
            found.append(Picture(stem, title, figure, told, wide=first))
    return found


def rounds(data: Data, paper: Mapping[str, str] | None = None) -> Table:
    """Rounds to the highest accuracy of FedAvg, method by method; with what the paper found, where it did the same."""
    reference = data["rounds_to_target"][REFERENCE]
    head = ["method", "rounds to the mark", "faster than FedAvg", "by seed", "final accuracy", "rate"]
    rows = []
    for name, reached in data["rounds_to_target"].items():
        seeds = ", ".join("–" if r is None else str(r) for r in data["rounds_to_target_by_seed"][name])
        ratio = f"{reference / reached:.1f}×" if reached and reference else "–"
        rows.append([name, _number(reached), ratio, seeds, _mean(data["final"][name]), _rate(data, name)])
    if paper is not None:
        head.insert(3, "paper")
        for row in rows:
            row.insert(3, paper.get(row[0], ""))
    return Table(head, rows, "By seed: with the highest accuracy that FedAvg had at that seed.")


def _rate(data: Data, name: str) -> str:
    return f"{data['tuning'][name]['values']['eta']:.3g}"


def _findings(data: Data) -> Table:
    final = {name: _plain_mean(values) for name, values in data["final"].items()}

    def order(*names: str) -> str:
        known = [name for name in names if final.get(name) is not None]
        return " > ".join(f"{name} {final[name]:.1%}" for name in sorted(known, key=lambda name: -(final[name] or 0)))

    rows = [
        ["all", "Mime ≈ MimeLite > FedAvg > SCAFFOLD > FedProx", order(*SEVEN[:6])],
        ["state", "fixed better than locally updated", order("Mime", "Loc-Mime")],
    ]
    if "Mime, β = 0" in final:
        found = order("Mime", "Mime, β = 0", "FedAvg", "FedAvg, β = 0")
        rows.append(["momentum", "helps Mime much, FedAvg slightly", found])
    return Table(["what", "paper", "ours: accuracy after the last round"], rows)


def marks(data: Data) -> Table:
    """Rounds to lower accuracies."""
    names = list(data["curves"])
    rows = [[name, *(_number(reached[name]) for reached in data["marks"].values())] for name in names]
    return Table(["method", *data["marks"]], rows)


def tuning(data: Data) -> Table:
    """Every rate tried."""
    rows = []
    for name, tuned in data["tuning"].items():
        tried = sorted(tuned["tried"], key=lambda point: -point["eta"])
        scores = "  ".join(f"{p['eta']:.2g}: {_score(p)}" for p in tried)
        edge = ", ".join(tuned["at_edge"]) or "no"
        rows.append([name, _rate(data, name), scores, edge, f"{tuned['runs']:.1f}"])
    head = ["method", "chosen rate", "accuracies tried (where halving stopped them)", "on the edge", "cost in runs"]
    return Table(head, rows)


def _score(point: dict[str, Any]) -> str:
    return "diverged" if point["score"] is None else f"{point['score']:.0%} ({point['rounds']})"


def _number(value: int | None) -> str:
    return "not reached" if value is None else f"{value}"


def _plain_mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean(values: list[float | None]) -> str:
    if any(value is None for value in values):
        return "diverged"
    mean, half = mean_interval(np.asarray(values, float)[:, None])
    return f"{mean[0]:.2%}" + (f" ± {half[0]:.2%}" if len(values) > 1 else "")
