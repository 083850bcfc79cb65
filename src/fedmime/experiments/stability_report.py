"""Heat maps and lines of the stability figure."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmime.report import style
from fedmime.report.curves import band, mean_interval
from fedmime.report.heatmap import heat_map
from fedmime.report.html import Section, Table
from fedmime.report.picture import Picture

Data = dict[str, Any]


def sections(data: Data) -> list[Section]:
    """What the report shows."""
    s = data["setting"]
    told = (
        f"{s['task']}, {s['rounds']} rounds, {s['cohort']} clients a round. Each cell is the best accuracy over "
        f"{len(s['rates'])} client rates, the mean of {s['seeds']} seeds; boxed is what a centralized run would use: "
        "server rate 1 and the smallest ε."
    )
    found = [Section("Server rate and ε", told, _maps(data), _table(data))]
    if data["lines"]:
        told = "The best over client rates; the mean of seeds with its 95 % interval."
        found.append(Section("Server rate without ε", told, [_lines(data)]))
    return found


def _by_seed(found: Data) -> np.ndarray:
    """[seeds, ...], NaN where every client rate diverged."""
    return np.asarray(found["accuracy"], float)


def _values(found: Data) -> np.ndarray:
    return _by_seed(found).mean(axis=0)


def _default(found: Data) -> tuple[int, int]:
    """The cell of the centralized default."""
    return found["server"].index(1.0), int(np.argmin(found["eps"]))


def _maps(data: Data) -> list[Picture]:
    known = np.concatenate([_values(found).ravel() for found in data["maps"]])
    scale = (float(np.nanmin(known)), float(np.nanmax(known))) if np.isfinite(known).any() else (0.0, 1.0)
    return [
        Picture(
            f"stability-{found['method']}",
            found["method"],
            heat_map(
                _values(found),
                found["server"],
                found["eps"],
                found["method"],
                "server rate",
                "ε",
                _default(found),
                scale,
            ),
        )
        for found in data["maps"]
    ]


def _table(data: Data) -> Table:
    rows = []
    for found in data["maps"]:
        mean, half = mean_interval(_by_seed(found).reshape(data["setting"]["seeds"], -1))
        default = int(np.ravel_multi_index(_default(found), _values(found).shape))
        best = int(np.nanargmax(mean))
        near = float(np.mean(np.nan_to_num(mean) >= mean[best] - 0.05))
        written = [_written(mean[at], half[at]) for at in (best, default)]
        lost = "diverged" if np.isnan(mean[default]) else f"{100 * (mean[best] - mean[default]):.1f}"
        rows.append([found["method"], *written, lost, f"{near:.0%}"])
    head = ["method", "best cell", "default cell", "lost by the default, points", "cells within 5 points of the best"]
    return Table(head, rows, "The paper: FedAvgAdam does poorly at the default, Mime and MimeLite best near it.")


def _written(mean: float, half: float) -> str:
    return "–" if np.isnan(mean) else f"{mean:.1%} ± {half:.1%}"


def _lines(data: Data) -> Picture:
    with style.styled():
        figure = style.figure()
        ax = figure.subplots()
        for label, look in style.lines([found["method"] for found in data["lines"]]).items():
            found = next(f for f in data["lines"] if f["method"] == label)
            band(ax, found["server"], _by_seed(found), look)
        ax.set_xscale("log")
        ax.set(title="Server rate of SGD and momentum", xlabel="server rate", ylabel="best test accuracy")
        style.label_lines(ax)
    return Picture("stability-lines", "Server rate of SGD and momentum", figure)
