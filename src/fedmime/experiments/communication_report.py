"""The table of cohorts under equal communication, and a bar for each method's cost."""

from __future__ import annotations

from typing import Any

from fedmime.report import style
from fedmime.report.html import Section, Table
from fedmime.report.picture import Picture


def sections(data: dict[str, Any]) -> list[Section]:
    """What the report shows."""
    places = list(data["budgets"])
    head = ["method", "model-sizes", "paper"]
    for place in places:
        head += [f"{place}, {data['budgets'][place]:g}", "paper"]
    rows = []
    for row in data["rows"]:
        cells = [row["method"], f"{row['model_sizes']:.3g}", str(row["paper_model_sizes"])]
        for place in places:
            cells += [str(row["cohorts"][place]), str(row["paper_cohorts"][place])]
        rows.append(cells)
    told = (
        "Model-sizes that a client (FedAvg) or a pair of clients (the others: one trains, one sends its gradient) "
        "receives and sends in a round, counted from the messages; cohorts are what the budget then allows."
    )
    return [Section("Cohorts of equal communication", told, [_picture(data)], Table(head, rows))]


def _picture(data: dict[str, Any]) -> Picture:
    names = [row["method"] for row in data["rows"]]
    with style.styled():
        figure = style.figure(6.4, 3.2)
        ax = figure.subplots()
        for place, row in enumerate(data["rows"]):
            ax.barh(place, row["model_sizes"], 0.62, color=style.colour(row["method"]))
            ax.plot(row["paper_model_sizes"], place, "|", color=style.INK, markersize=16, markeredgewidth=2)
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.set(title="Communication a round", xlabel="model-sizes of a client or pair; stroke: paper")
    return Picture("communication", "Communication a round", figure)
