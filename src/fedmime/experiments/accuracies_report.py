"""The table of accuracies under equal communication, the paper's beside ours."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import rankdata

from fedmime.report import style
from fedmime.report.curves import mean_interval
from fedmime.report.html import Section, Table
from fedmime.report.picture import Picture

Rows = list[dict[str, Any]]


def sections(data: dict[str, Any]) -> list[Section]:
    """One section a column of the paper's table."""
    columns = dict.fromkeys(row["column"] for row in data["rows"])
    return [_section(column, [row for row in data["rows"] if row["column"] == column], data) for column in columns]


def _section(column: str, rows: Rows, data: dict[str, Any]) -> Section:
    head = ["method", "clients", "rate", "accuracy", "paper, 1000 rounds", "difference from FedAvg", "paper's"]
    cells = []
    for row in rows:
        clients = f"{row['cohort'] // 2} pairs" if row["pairs"] else f"{row['cohort']}"
        edge = " (edge)" if row["at_edge"] else ""
        ours, paper = _gap(row, rows)
        theirs = "–" if row["paper"] is None else f"{row['paper']:.1%}"
        cells.append([row["method"], clients, f"{row['eta']:.3g}{edge}", written(row), theirs, ours, paper])
    told = (
        f"{rows[0]['task']}, {rows[0]['rounds']} rounds, one local epoch, {data['setting']['seeds']} seeds; "
        "clients such that every method sends as much a round. Differences are to FedAvg with the same base optimizer. "
        f"{_order(rows)}"
    )
    return Section(f"Accuracies: {column}", told, [_picture(column, rows)], Table(head, cells))


def _order(rows: Rows) -> str:
    """How far the order of the methods is that of the paper, in a sentence. A run that diverged counts as the worst."""
    found = rank_correlation(rows)
    if found is None:
        return ""
    return f"Rank correlation (Spearman) of the methods' accuracies with the paper's: {found:.2f}."


def rank_correlation(rows: Rows) -> float | None:
    """Spearman's correlation of mean accuracies with the paper's; None where ranks say nothing.

    MimeLiteSGD is the same run as FedAvgSGD and is left out, as are rows that the paper does not have.
    """
    told = [row for row in rows if row["paper"] is not None and row["method"] != "MimeLiteSGD"]
    ours, paper = [_mean(row) or 0.0 for row in told], [row["paper"] for row in told]
    if min(len(set(ours)), len(set(paper))) < 3:
        return None
    return float(np.corrcoef(rankdata(ours), rankdata(paper))[0, 1])


def _gap(row: dict[str, Any], rows: Rows) -> tuple[str, str]:
    """How much better than FedAvg with the same base, ours and the paper's."""
    base = row["method"].replace("MimeLite", "FedAvg").replace("Mime", "FedAvg").removesuffix(", lookahead")
    other = next(r for r in rows if r["method"] == base)
    if other is row:
        return "", ""
    mine, theirs = _mean(row), _mean(other)
    ours = "–" if mine is None or theirs is None else f"{100 * (mine - theirs):+.1f}"
    return ours, "–" if row["paper"] is None else f"{100 * (row['paper'] - other['paper']):+.1f}"


def _mean(row: dict[str, Any]) -> float | None:
    known = [value for value in row["accuracy"] if value is not None]
    return float(np.mean(known)) if len(known) == len(row["accuracy"]) else None


def written(row: dict[str, Any]) -> str:
    """The mean accuracy over seeds with its interval, in words."""
    if _mean(row) is None:
        return "diverged"
    mean, half = mean_interval(np.asarray(row["accuracy"], float)[:, None])
    return f"{mean[0]:.1%}" + (f" ± {half[0]:.1%}" if len(row["accuracy"]) > 1 else "")


def _picture(column: str, rows: Rows) -> Picture:
    with style.styled():
        figure = style.figure(6.4, 0.9 + 0.3 * len(rows))
        ax = figure.subplots()
        for place, row in enumerate(rows):
            mean, half = mean_interval(np.asarray([np.nan if v is None else v for v in row["accuracy"]])[:, None])
            ax.errorbar(mean[0], place, xerr=half[0], fmt="o", color=style.colour(row["method"]), capsize=3)
            if row["paper"] is not None:
                ax.plot(row["paper"], place, "|", color=style.INK, markersize=12, markeredgewidth=1.6)
        ax.set_yticks(range(len(rows)), [row["method"] for row in rows])
        ax.invert_yaxis()
        ax.set(title=f"Test accuracy, {column}", xlabel="accuracy with its 95 % interval; stroke: paper")
    return Picture(f"accuracies-{column}", f"Test accuracy, {column}", figure)
