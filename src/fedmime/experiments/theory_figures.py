"""The figures of `reproduce theory`: the deviation, and rounds against similarity, local steps and cohort."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmime.experiments.theory_slopes import rounds_rows
from fedmime.report import html, style
from fedmime.report.picture import Picture, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = list[dict[str, Any]]


def pictures(data: dict[str, Any]) -> list[Picture]:
    """All figures, for files or for a page."""
    return [_deviation(data), _similarity(data), _steps(data), _cohort(data)]


def sections(data: dict[str, Any]) -> list[html.Section]:
    """The figures with the numbers beside the theory's, as parts of a page."""
    deviation, similarity, steps, cohort = pictures(data)
    head, rows = rounds_rows(data["similarity"])
    caption = "Rounds of every method with its best rate; last of each problem: server-only MVR's over MimeMVR's."
    fits = [[row["what"], row["theory"], f"{row['fitted']:.3f}"] for row in data["slopes"]]
    return [
        html.Section("Rounds as clients grow alike", "", [similarity], html.Table(head, rows, caption)),
        html.Section("Local steps and cohorts", "", [steps, cohort]),
        html.Section(
            "Exponents beside the theory's", "", [deviation], html.Table(["exponent", "theory", "ours"], fits)
        ),
    ]


def draw(data: dict[str, Any], out: Path) -> list[Path]:
    """Write every figure as PNG and PDF."""
    return [path for each in pictures(data) for path in save(each.figure, out / each.stem)]


def _deviation(data: dict[str, Any]) -> Picture:
    problems = list(dict.fromkeys(row["problem"] for row in data["deviation"]))
    with style.styled():
        figure = style.figure(9.6, 0.6 + 3.1 * len(problems))
        panels = figure.subplots(len(problems), 2, sharex=True, sharey=True, squeeze=False)
        for axes, problem in zip(panels, problems, strict=True):
            for ax, method in zip(axes, ("Mime", "MimeLite"), strict=True):
                _lines_of_bases(ax, [r for r in data["deviation"] if (r["problem"], r["method"]) == (problem, method)])
                ax.set_title(f"{method}, {problem} clients")
            axes[0].set_ylabel("‖e‖ / bound at 1/(BL)")
        for ax in panels[-1]:
            ax.set_xlabel("η̃ = Kη, in units of 1/(BL)")
        for ax in panels.flat:
            style.label_lines(ax, 8.5)
    told = (
        "Deviation e of a round's step from the central one, by base optimizer, up to η̃ = 1/(2BL): all grow with "
        "slope 1 and stay under the lemma's bound."
    )
    return Picture("theory-deviation", "Deviation from the central step", figure, told, wide=True)


def _lines_of_bases(ax: Axes, rows: Rows) -> None:
    for row in rows:
        look = style.line(f"{row['method']} ({row['base']})") | {"label": row["base"], "linewidth": 1.2}
        scaled = [e / b * x for e, b, x in zip(row["e"], row["bound"], row["eta_tilde"], strict=True)]
        ax.plot(row["eta_tilde"], scaled, **look)
    x = rows[0]["eta_tilde"]
    ax.plot(x, x, color=style.INK, linewidth=1.1, linestyle=(0, (4, 3)), label="bound")
    ax.set_xscale("log")
    ax.set_yscale("log")


def _similarity(data: dict[str, Any]) -> Picture:
    with style.styled():
        found = data["similarity"]
        figure = style.figure(5.0 * len(found), 3.9)
        panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for ax, (problem, rows) in zip(panels, found.items(), strict=True):
            _rounds(ax, rows, "delta")
            ax.set_title(_similarity_title(problem, data["factors"]))
            ax.set_xlabel("δ/L, clients growing alike →")
            ax.invert_xaxis()
        panels[0].set_ylabel(f"rounds until ‖∇f‖² ≤ {data['eps']:g}")
        for ax in panels:
            style.label_lines(ax)
    told = (
        "Every method tuned on the same rates; local methods take K = L/δ steps. Above the panels: how many times "
        "fewer rounds MimeMVR takes than server-only MVR. Lines break where a method did not arrive."
    )
    return Picture("theory-similarity", "Rounds against the similarity of Hessians", figure, told, wide=True)


def _similarity_title(problem: str, factors: Rows) -> str:
    mine = [row for row in factors if row["problem"] == problem]
    if not mine:
        return f"{problem.capitalize()} clients"
    least = min(mine, key=lambda row: row["delta"])
    return f"{problem.capitalize()}: {least['factor']:.0f} × fewer at δ = {least['delta']:g} L"


def _steps(data: dict[str, Any]) -> Picture:
    with style.styled():
        figure = style.figure(5.6, 3.7)
        ax = figure.subplots()
        _rounds(ax, data["steps"], "K")
        limit = 1 / data["middle"]
        ax.axvline(limit, color=style.MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        place = {"textcoords": "offset points", "color": style.MUTED, "fontsize": 9, "va": "top"}
        ax.annotate("K = L/δ", (limit, 1), (4, -2), xycoords=("data", "axes fraction"), **place)
        ax.set_title(f"Local steps pay up to L/δ = {limit:.0f}")
        ax.set_xlabel("local steps K")
        ax.set_ylabel(f"rounds until ‖∇f‖² ≤ {data['eps']:g}")
        style.label_lines(ax)
    return Picture("theory-steps", "Rounds against local steps", figure, "Rates tuned for every K.")


def _cohort(data: dict[str, Any]) -> Picture:
    with style.styled():
        figure = style.figure(9.6, 3.7)
        left, right = figure.subplots(1, 2)
        for method in ("Mime", "MimeLite"):
            rows = [row for row in data["errors"] if row["method"] == method]
            S = [row["S"] for row in rows]
            left.plot(S, [row["error"] for row in rows], **style.line(method) | {"marker": "o", "markevery": 1})
            hue = style.colour(method)
            left.plot(S, [row["bound"] for row in rows], color=hue, linewidth=1, linestyle=(0, (4, 3)), label="bound")
        left.set_xscale("log")
        left.set_yscale("log")
        left.set_title("Error of a client's direction")
        left.set_ylabel("mean of ‖d − ∇f(y)‖²")
        _rounds(right, data["cohort"], "S")
        right.set_title("Rounds")
        right.set_ylabel(f"rounds until ‖∇f‖² ≤ {data['eps']:g}")
        for ax in (left, right):
            _ticks(ax, sorted({row["S"] for row in data["errors"]}))
            ax.set_xlabel("clients a round S")
            style.label_lines(ax)
    told = (
        "Mime's direction errs by G²/S, MimeLite's by G² + σ² whatever the cohort; dashed: the lemmas' bounds. In "
        "rounds both gain from larger cohorts, as the server averages their updates."
    )
    return Picture("theory-cohort", "What a larger cohort buys", figure, told, wide=True)


def _rounds(ax: Axes, rows: Rows, by: str) -> None:
    """A line a method; where a method did not arrive there is a gap."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    methods = list(dict.fromkeys(row["method"] for row in rows))
    for place, method in enumerate(methods):  # the first method lies on top
        mine = sorted((row for row in rows if row["method"] == method), key=lambda row: row[by], reverse=by == "delta")
        values = [row["rounds"] or float("nan") for row in mine]
        look = style.line(method) | {"marker": "o", "markevery": 1, "zorder": 3 + len(methods) - place}
        ax.plot([row[by] for row in mine], values, **look)
    ax.set_xscale("log")
    _ticks(ax, sorted({row[by] for row in rows}))
    if any(row["rounds"] for row in rows):  # an empty axis has no logarithms
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.yaxis.set_minor_formatter(NullFormatter())


def _ticks(ax: Axes, values: list[float]) -> None:
    """One tick for each value that was run, written as it is."""
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.minorticks_off()
