"""Densities and what helps where gradients are sparse, as a figure and tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmime.experiments.accuracies_report import written
from fedmime.experiments.sparsity_density import MODEL
from fedmime.experiments.sparsity_figure import picture, sparsest
from fedmime.report.html import Section, Table

Data = dict[str, Any]
VECTORS = {"gradient": "∇fᵢ(x; ζ)", "momentum": "m", "correction": "c − ∇fᵢ(x; ζ)", "cohort": "c"}


def sections(data: Data) -> list[Section]:
    """What the report shows."""
    s, tasks = data["setting"], by_task(data["density"])
    told = (
        f"Mime with momentum β = {s['beta']:g} at each task's rate, {s['seeds']} "
        f"{'seed' if s['seeds'] == 1 else 'seeds'}; at the model x after {s['marks'][-1]} rounds, "
        f"means over one mini-batch of every client of {s['cohorts']} cohorts. Non-zero: the share of entries that are "
        "not exactly zero. Effective: (Σ|v|)² / (d Σv²), which is k/d for k equal entries among zeros and 0.64 for "
        "normal ones."
    )
    filled = (
        "The share of the squared first local step that falls on coordinates where the client's own mini-batch "
        "gradient is exactly zero, and where its full gradient is: words that the mini-batch, or the client, does not "
        "hold. A step of FedAvg has none there. At y = x, the corrected gradient of Mime is c."
    )
    found = [
        Section("Density", told, [picture(tasks)], _densities(tasks)),
        Section("Steps outside a client's own gradient", filled, table=_steps(tasks)),
        Section(
            "Along the run",
            "The same after fewer rounds, of the whole model and the layer with the most zeros.",
            table=_along(data["density"]),
        ),
    ]
    columns = dict.fromkeys(row["column"] for row in data["remedies"])
    return found + [_remedy([row for row in data["remedies"] if row["column"] == column]) for column in columns]


def by_task(rows: list[Data]) -> dict[str, Data]:
    """For every task, the layers after the last of its rounds, means over seeds."""
    return {task: _mean([row["layers"] for row in runs[max(runs)]]) for task, runs in _runs(rows).items()}


def _runs(rows: list[Data]) -> dict[str, dict[int, list[Data]]]:
    """What was measured, by task and rounds: one entry for each seed."""
    found: dict[str, dict[int, list[Data]]] = {}
    for row in rows:
        found.setdefault(row["task"], {}).setdefault(row["rounds"], []).append(row)
    return found


def _mean(trees: list[Any]) -> Any:
    """The entry-wise mean of nested dictionaries of numbers."""
    if isinstance(trees[0], dict):
        return {key: _mean([tree[key] for tree in trees]) for key in trees[0]}
    return float(np.mean(trees))


def shown_layers(layers: Data) -> list[str]:
    """The whole model and its layers; not the layer of a model that has only one."""
    return list(layers) if len(layers) > 2 else [MODEL]


def share(value: float) -> str:
    """A share in per cent with three digits; what is smaller than a millionth is only told to be there."""
    return "< 0.0001 %" if 0 < value < 1e-6 else f"{100 * value:.3g} %"


def _densities(tasks: dict[str, Data]) -> Table:
    head = ["task", "part", "entries"]
    head += [f"{kind}: {name}" for kind in ("non-zero", "effective") for name in VECTORS.values()]
    rows = [
        [task, name, f"{layers[name]['size']:,.0f}"]
        + [share(layers[name][kind][vector]) for kind in ("nonzero", "effective") for vector in VECTORS]
        for task, layers in tasks.items()
        for name in shown_layers(layers)
    ]
    return Table(head, rows)


def _steps(tasks: dict[str, Data]) -> Table:
    rows = [
        [task, name]
        + [share(value) for kind in ("outside_batch", "outside_client") for value in layers[name][kind].values()]
        for task, layers in tasks.items()
        for name in shown_layers(layers)
    ]
    methods = list(next(iter(tasks.values()))[MODEL]["outside_batch"])
    head = [f"{method}, outside {what}" for what in ("mini-batch", "client") for method in methods]
    return Table(["task", "part", *head], rows)


def _along(rows: list[Data]) -> Table:
    cells = []
    for task, runs in _runs(rows).items():
        for rounds, seeds in runs.items():
            layers = _mean([row["layers"] for row in seeds])
            told = [task, f"{rounds}", f"{seeds[0]['eta']:g}", f"{np.mean([row['loss'] for row in seeds]):.3f}"]
            for name in filter(None, (MODEL, sparsest(layers))):
                part = layers[name]
                found = [part[kind][vector] for kind in ("nonzero", "effective") for vector in ("gradient", "momentum")]
                cells.append([*told, name, *(share(value) for value in (*found, *part["outside_batch"].values()))])
    head = ["task", "rounds", "rate", "loss", "part"]
    head += [f"{kind}: {VECTORS[name]}" for kind in ("non-zero", "effective") for name in ("gradient", "momentum")]
    methods = list(rows[0]["layers"][MODEL]["outside_batch"])
    caption = "The loss is that of the last round's local steps."
    return Table([*head, *(f"{method}, outside mini-batch" for method in methods)], cells, caption)


def _remedy(rows: list[Data]) -> Section:
    first = rows[0]
    told = (
        f"{first['task']}, {first['rounds']} rounds, one local epoch, {len(first['accuracy'])} "
        f"{'seed' if len(first['accuracy']) == 1 else 'seeds'}, the best of {len(first['rates'])} rates; clients such "
        "that every method sends as much a round. MimeLiteSGD is FedAvg."
    )
    cells = []
    for row in rows:
        clients = f"{row['cohort'] // 2} pairs" if row["pairs"] else f"{row['cohort']}"
        edge = " (edge)" if row["at_edge"] else ""
        cells.append([row["method"], clients, f"{row['eta']:.3g}{edge}", written(row), _tried(row["tried"])])
    head = ["method", "clients", "rate", "accuracy", "while tuning: rate: mean of the last accuracies (rounds)"]
    return Section(f"Remedies: {first['column']}", told, table=Table(head, cells))


def _tried(points: list[Data]) -> str:
    told = {p["eta"]: "diverged" if p["score"] is None else f"{p['score']:.1%} ({p['rounds']})" for p in points}
    return "  ".join(f"{eta:g}: {text}" for eta, text in told.items())
