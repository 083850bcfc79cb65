"""The drift figure: both methods' paths with their clients' local steps, and where they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedmime.experiments.drift import local_steps, two_clients
from fedmime.report import style
from fedmime.report.html import Section, Table
from fedmime.report.picture import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN = 10  # rounds drawn


def sections(data: dict[str, Any]) -> list[Section]:
    """What the report shows."""
    rows = [
        [name, f"{data['to_optimum'][name]:.1e}", f"{data['to_mean_of_optima'][name]:.1e}", _paper(name)]
        for name in data["paths"]
    ]
    head = ["method", "distance to the optimum", "to the average of client optima", "paper: ends at"]
    s = data["setting"]
    told = (
        f"Two clients, {s['steps']} local steps, β = {s['beta']}, after {s['rounds']} rounds. The optimum is "
        f"{data['apart']:.2f} away from the average of the clients' optima."
    )
    return [Section("Where the methods end", told, [_picture(data)], Table(head, rows))]


def _paper(name: str) -> str:
    return "the average of client optima" if name == "FedAvg" else "the true optimum"


def _picture(data: dict[str, Any]) -> Picture:
    with style.styled():
        figure = style.figure(9.6, 4.2)
        for ax, name in zip(figure.subplots(1, 2, sharex=True, sharey=True), data["paths"], strict=True):
            _draw(ax, name, data)
    told = (
        "Thin: the clients' local steps. Line: the server model. FedAvg is drawn to the average of the client optima."
    )
    return Picture("drift", "Client drift", figure, told, wide=True)


def _draw(ax: Axes, name: str, data: dict[str, Any]) -> None:
    server = np.asarray(data["paths"][name])[: _SHOWN + 1]
    ways = local_steps(name, two_clients(), server[:-1])
    for client, hue in enumerate((style.colour("SCAFFOLD"), style.colour("MimeLite"))):
        for way in ways[:, client]:
            ax.plot(*way.T, color=hue, linewidth=0.9, marker=".", markersize=3, alpha=0.8)
        ax.plot(*data["client_optima"][client], "s", color=hue, markersize=7)
        offset = (16, 12) if client == 0 else (-16, 12)
        ax.annotate(f"optimum of client {client + 1}", data["client_optima"][client], offset,
                    textcoords="offset points", fontsize=8, ha="right" if client == 0 else "left")  # fmt: skip
    ax.plot(*server.T, color=style.colour(name), linewidth=2.2, marker="o", markersize=4)
    ax.plot(*data["optimum"], "*", color=style.INK, markersize=13)
    ax.annotate("true optimum", data["optimum"], (6, -14), textcoords="offset points", fontsize=8)
    ax.plot(*data["mean_of_optima"], "X", color=style.MUTED, markersize=9)
    ax.annotate(
        "average of optima", data["mean_of_optima"], (-6, 8), textcoords="offset points", fontsize=8, ha="right"
    )
    ax.set_title(name)
    ax.set_aspect("equal")
