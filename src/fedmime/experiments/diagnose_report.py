"""A diagnosis as tables, a figure and a page."""

from __future__ import annotations

import json
import math
from pathlib import Path

from markupsafe import Markup, escape

from fedmime.experiments.diagnose import Diagnosis
from fedmime.experiments.diagnose_words import as_json, caveats, disagreements, rounded, words
from fedmime.report import html, style
from fedmime.report.picture import Picture, save

_ABOUT = {
    "G2": ("G²", "spread of clients' gradients"),
    "sigma2": ("σ²", "spread of a client's mini-batch gradients"),
    "L": ("L", "norm of f's Hessian"),
    "delta": ("δ", "largest distance of a client's Hessian to f's"),
}
_LINES = (
    ("L", "L", 1.0, "Mime"),
    ("δ", "delta", 1.0, "FedAvg"),
    ("G", "G2", 0.5, "MimeLite"),
    ("σ", "sigma2", 0.5, "SCAFFOLD"),
)
RATE_COLUMNS = ("method", "rounds", "largest term", "share", "needs")


def constant_rows(found: Diagnosis) -> list[tuple[str, str, str, str]]:
    """Symbol, value, 95 % interval and meaning of each constant; along a run the largest value counts."""
    first, rows = found.points[0][1], []
    for name, (symbol, about) in _ABOUT.items():
        value, told = getattr(found.worst, name), "–"
        if len(found.points) == 1 and first.intervals is not None:
            low, high = getattr(first.intervals, name)
            told = f"{low:.3g} to {high:.3g}" if high > low else "exact"
        elif len(found.points) > 1:
            values = [getattr(one, name) for _, one in found.points]
            told = f"{min(values):.3g} to {max(values):.3g} along the run"
        rows.append((symbol, f"{value:.4g}", told, about))
    return rows


def rate_rows(found: Diagnosis) -> list[tuple[str, ...]]:
    """The table of rates, fewest rounds first, the lower bound last."""
    ordered = sorted(found.table, key=lambda row: (row.family == "lower bound", row.rounds))
    rows = []
    for row in ordered:
        endless = math.isinf(row.rounds)
        share = "" if endless else f"{row.terms[row.dominating] / row.rounds:.0%}"
        needs = f"{row.condition}{'' if row.holds else ' (not so)'}" if row.family != "lower bound" else row.family
        rows.append((row.method, "never" if endless else rounded(row.rounds), row.dominating, share, needs))
    return rows


def figure(found: Diagnosis) -> Picture | None:
    """G, δ and L along the run; nothing for a single point."""
    if len(found.points) < 2:
        return None
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    with style.styled():
        drawn = style.figure(5.6, 3.7)
        ax = drawn.subplots()
        rounds = [at for at, _ in found.points]
        for label, name, root, like in _LINES:
            values = [getattr(one, name) ** root for _, one in found.points]
            ax.plot(rounds, values, color=style.colour(like), marker="o", label=label)
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_title(f"Constants of {found.task} along a run")
        ax.set_xlabel("rounds of FedAvg")
        style.label_lines(ax)
    told = "Where δ stays below L, local steps keep paying; G and σ are roots of the spreads G² and σ²."
    return Picture("constants", "Constants along a run", drawn, told)


def section(found: Diagnosis) -> list[html.Section]:
    """The diagnosis as parts of a page."""
    said = "".join(f"<p>{escape(line)}</p>" for line in words(found))
    limits = "".join(f"<li>{escape(line)}</li>" for line in (*disagreements(found), *caveats(found)))
    drawn = figure(found)
    constants = html.Table(("", "value", "interval", "what"), constant_rows(found))
    caption = f"Rounds until ‖∇f‖² ≤ {found.eps:.3g} with S = {found.cohort}, K = {found.K:,}"
    rates = html.Table(RATE_COLUMNS, rate_rows(found), caption)
    return [
        html.Section(f"What {found.task} asks for", Markup(said), [drawn] if drawn else [], constants),  # noqa: S704
        html.Section("Rounds by the paper's rates", Markup(f"<ul>{limits}</ul>"), [], rates),  # noqa: S704
    ]


def write(found: Diagnosis, out: Path) -> list[Path]:
    """`diagnosis.json`, `diagnosis.html` and, for a run, the figure as PNG and PDF."""
    out.mkdir(parents=True, exist_ok=True)
    data = out / "diagnosis.json"
    data.write_text(json.dumps(as_json(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page = html.write(out / "diagnosis.html", f"Diagnosis of {found.task}", sections=section(found))
    drawn = figure(found)
    return [data, page, *(save(drawn.figure, out / drawn.stem) if drawn else [])]
