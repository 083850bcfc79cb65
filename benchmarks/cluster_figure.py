"""A figure of the model of `cluster_model.py`: where a round's time goes, and where workers on other machines pay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from benchmarks.cluster_constants import constants_of, models_of
from benchmarks.cluster_model import (
    FEDAVG,
    METHODS,
    WORKERS,
    Method,
    Model,
    Network,
    Setup,
    Split,
    crossover,
    lengths,
    on_one_machine,
    with_ray,
)
from benchmarks.cluster_tables import SIZES, dense, networks

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.colors import TwoSlopeNorm

Section = dict[str, Any]

COLOURS = {
    "compute": "#1b6ca8",
    "dispatch": "#9aa5b1",
    "broadcast": "#e07b39",
    "gather": "#c9a227",
    "sum": "#5a9367",
    "server": "#9a6fb0",
}
LINES = ("#1b6ca8", "#e07b39", "#5a9367", "#9a6fb0", "#c9a227", "#444444")
SPLIT_CLIENTS, SPEED_CLIENTS = 100, 1000
POWERS = (1, 2, 4, 8, 16, 32, 64)
CELLS = 13  # of a map, each way


def draw(section: Section, path: Path) -> None:
    """Save the figure of a section whose constants were measured."""
    known = section["constants"]
    figure, panels = plt.subplots(2, 2, figsize=(13, 9.5), layout="constrained")
    shown = _shown(known)
    network = networks(known)[-1]
    _split(panels[0][0], known, shown[0], network)
    _speedups(panels[0][1], known, shown, network)
    for panel, method in zip(panels[1], METHODS, strict=True):
        mesh = _map(panel, known, method)
    if mesh is not None:
        bar = figure.colorbar(mesh, ax=panels[1], ticks=np.log2([0.25, 0.5, 1, 2, 4, 8, 16, 32]), shrink=0.9, pad=0.01)
        bar.ax.set_yticklabels(["¼×", "½×", "1×", "2×", "4×", "8×", "16×", "32×"])
        bar.set_label("best speed-up with 3 to 64 workers")
    figure.suptitle(
        "When do workers on other machines pay?  Simulated from constants of one machine of two cores", fontsize=14
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _shown(known: Section) -> list[Model]:
    """The models whose rounds are drawn: the convolutional network first, if it was measured."""
    named = sorted(
        (m for m in models_of(known) if not m.name.startswith("dense-")), key=lambda m: m.name != "emnist-cnn"
    )
    return named + [m for size in SIZES if (m := dense(known, size)) is not None]


def _split(panel: Any, known: Section, model: Model, network: Network) -> None:
    """Areas on top of each other, one for each part of a round, over the number of workers."""
    setup, constants = Setup(FEDAVG, model, lengths(SPLIT_CLIENTS).tolist()), constants_of(known)
    splits = [with_ray(setup, constants, w, network) for w in WORKERS]
    parts = [[1e3 * getattr(split, name) for split in splits] for name in COLOURS]
    panel.stackplot(WORKERS, parts, colors=list(COLOURS.values()), labels=list(COLOURS), alpha=0.9)
    alone = 1e3 * on_one_machine(setup, constants).total
    panel.axhline(alone, color="black", linestyle="--", linewidth=1.2)
    panel.annotate("local, two cores", (64, alone), (0, 4), textcoords="offset points", ha="right", fontsize=9)
    panel.set(xscale="log", xlabel="workers of one core", ylabel="ms a round", ylim=(0, 1.5 * alone))
    panel.set_xticks(POWERS, [str(w) for w in POWERS])
    panel.minorticks_off()
    panel.set_xlim(1, 64)
    panel.set_title(f"Where a round goes: FedAvg, {model.name}, {SPLIT_CLIENTS} clients, {network.name}", fontsize=11)
    panel.legend(loc="upper center", ncols=3, frameon=True, framealpha=0.95, fontsize=9)
    assert set(COLOURS) == set(Split._fields)


def _speedups(panel: Any, known: Section, shown: list[Model], network: Network) -> None:
    constants, sizes = constants_of(known), lengths(SPEED_CLIENTS).tolist()
    for model, colour in zip(shown, LINES, strict=False):
        setup = Setup(FEDAVG, model, sizes)
        alone = on_one_machine(setup, constants).total
        speeds = [alone / with_ray(setup, constants, w, network).total for w in WORKERS]
        panel.plot(WORKERS, speeds, color=colour, label=model.name, linewidth=2)
    panel.plot(WORKERS, [w / 2 for w in WORKERS], color="#bbbbbb", linestyle=":", label="as many cores, no cost")
    panel.axhline(1, color="black", linestyle="--", linewidth=1)
    panel.set(xscale="log", yscale="log", xlabel="workers of one core", ylabel="times faster than local on two cores")
    panel.set_xticks(POWERS, [str(w) for w in POWERS])
    ticks = (0.25, 0.5, 1, 2, 4, 8, 16, 32)
    panel.set_yticks(ticks, [f"{t:g}×" for t in ticks])
    panel.minorticks_off()
    panel.set_xlim(1, 64)
    panel.set_title(f"Speed-up: FedAvg, {SPEED_CLIENTS:,} clients a round, {network.name}", fontsize=11)
    panel.legend(loc="upper left", frameon=False, fontsize=9)
    panel.grid(alpha=0.25)


def _map(panel: Any, known: Section, method: Method) -> Any:
    """The best speed-up by size of a perceptron and number of clients; None if too few sizes were measured.

    One machine is left out of the choice, so that there is a best number of workers that have to use the network.
    """
    sizes, clients = np.geomspace(SIZES[0], SIZES[-1], CELLS), np.geomspace(10, 10_000, CELLS).round().astype(int)
    family = [model for size in sizes if (model := dense(known, size)) is not None]
    if len(family) < 2:
        return None
    widths = [model.parameters / 1e6 for model in family]
    workers = [w for w in POWERS if w > 2]
    mesh, styles = None, {"1 Gbit/s": "--", "10 Gbit/s": "-"}
    for network in networks(known):
        speed = np.array([[_best(method, m, n, known, network, workers) for m in family] for n in clients])
        if network.name == "10 Gbit/s":
            norm = TwoSlopeNorm(0, -2, 5)
            mesh = panel.pcolormesh(widths, clients, np.log2(speed), cmap="RdYlBu", norm=norm, shading="gouraud")
        contour = panel.contour(widths, clients, speed, [1.0], colors="black", linestyles=styles[network.name])
        panel.clabel(contour, fmt=f"as fast, {network.name}", fontsize=8)
    panel.set(xscale="log", yscale="log", xlabel="million parameters", ylabel="clients a round")
    panel.set_title(f"{method.name}, perceptrons: colours for 10 Gbit/s", fontsize=11)
    return mesh


def _best(method: Method, model: Model, clients: int, known: Section, network: Network, workers: list[int]) -> float:
    setup = Setup(method, model, lengths(clients).tolist())
    return crossover(setup, constants_of(known), network, workers).speedup
