"""A bar chart of CPU seconds a round: one panel a model, one group a case, one bar an entrant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.figures import value

mpl.use("Agg")

import matplotlib.pyplot as plt

CASES = {"FedAvg": "FedAvg", "MimeLite": "MimeLite", "Mime": "Mime"}
COLOURS = {
    "fedmime": "#1b6ca8",
    "pytorch": "#e07b39",
    "fedjax": "#5a9367",
    "pfl": "#9a6fb0",
    "flower": "#c9a227",
}
WIDTH = 0.16


def draw(section: dict[str, Any], path: Path) -> None:
    """Save the chart of the peers section."""
    models = list(section["models"])
    figure, panels = plt.subplots(1, len(models), figsize=(4 * len(models), 4), squeeze=False, layout="constrained")
    for panel, model in zip(panels[0], models, strict=True):
        _panel(panel, section, model)
    panels[0][0].set_ylabel("CPU seconds a round (all processes)")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    figure.legend(handles, list(COLOURS), loc="outside upper center", ncols=len(COLOURS), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _panel(panel: Any, section: dict[str, Any], model: str) -> None:
    for group, case in enumerate(CASES):
        for bar, entrant in enumerate(COLOURS):
            name = f"{case} beside Flower" if entrant == "flower" else case
            seconds = value(section, model, name, entrant, "cpu")
            if seconds is not None:
                place = group + (bar - len(COLOURS) / 2 + 0.5) * WIDTH
                drawn = panel.bar(place, seconds, WIDTH * 0.92, color=COLOURS[entrant])
                panel.bar_label(drawn, [f"{seconds:.2g}"], fontsize=7)
    work = section["models"][model]["work"]
    panel.set_title(f"{model}, {work['clients']} clients, {work['steps']} steps", fontsize=10)
    panel.set_xticks(range(len(CASES)), list(CASES.values()))
    panel.spines[["top", "right"]].set_visible(False)
