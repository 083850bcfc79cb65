"""A run at a glance: one line for people, and a card with curves for notebooks.

The card is plain HTML with SVG inside. It needs no plotting library, no script and no style sheet, and takes the
colour of its text from the page around it, so that it reads on light and on dark ground.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from fedmime.runs.sizes import size

_WIDTH, _HEIGHT = 330, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 26, 30
_MOST_POINTS, _MOST_CURVES = 400, 3
_COLOURS = ("#1f6fb2", "#c2571a", "#2a8a57")
_FONT = "font-family:system-ui,sans-serif;"


def summary(history: Mapping[str, np.ndarray]) -> list[tuple[str, str]]:
    """What sums a run up, as (name, value): what was measured last, and what was sent."""
    told = [("rounds", f"{len(history.get('round', ())):,}")]
    for name in ("test_accuracy", "test_loss", "train_loss", "loss", "epsilon"):
        values = finite(history, name)[1]
        if len(values):
            told.append((_words(name), f"{values[-1]:.2%}" if name.endswith("accuracy") else f"{values[-1]:.4g}"))
    sent = finite(history, "bytes_total")[1]
    if len(sent):
        told.append(("sent", size(float(sent[-1]))))
    if abandoned := int(np.sum(history.get("abandoned", 0))):
        told.append(("abandoned rounds", str(abandoned)))
    return told


def line(history: Mapping[str, np.ndarray], where: str | None) -> str:
    """A run in one line, as `repr` shows it."""
    (_, rounds), *rest = summary(history)
    told = [f"{rounds} round" + ("" if rounds == "1" else "s"), *(f"{name} {value}" for name, value in rest)]
    return f"Run({', '.join(told)}{'' if where is None else f'; {where!r}'})"


def card(history: Mapping[str, np.ndarray], where: str | None) -> str:
    """A run as HTML: its summary, and up to three curves: metrics of the test set, then the loss of training."""
    cells = "".join(
        f'<span style="display:inline-block;margin:0 1.6em .4em 0"><span style="opacity:.65">{escape(name)}</span> '
        f'<b style="font-variant-numeric:tabular-nums">{escape(value)}</b></span>'
        for name, value in summary(history)
    )
    title = "" if where is None else f' <span style="opacity:.65">{escape(where)}</span>'
    names = [name for name in history if name.startswith("test_") and len(finite(history, name)[1]) > 1]
    names = sorted(names, key=lambda name: (name != "test_accuracy", name != "test_loss"))[: _MOST_CURVES - 1]
    names += [name for name in ("loss",) if len(finite(history, name)[1]) > 1]
    drawn = "".join(
        curve(_words(name, "training loss"), *finite(history, name), colour=colour)
        for name, colour in zip(names, _COLOURS, strict=False)
    )
    box = f'<div style="display:flex;flex-wrap:wrap;gap:12px">{drawn}</div>' if drawn else ""
    style = f"{_FONT}font-size:13px;line-height:1.5"
    return f'<div style="{style}"><div><b>Run</b>{title}</div><div>{cells}</div>{box}</div>'


def curve(title: str, rounds: np.ndarray, values: np.ndarray, colour: str) -> str:
    """One curve as an SVG element.

    Args:
        title: what is drawn.
        rounds: numbers of finished rounds, in order [points].
        values: finite values [points].
        colour: of the line.
    """
    step = math.ceil(len(values) / _MOST_POINTS)
    chosen = np.unique(np.r_[np.arange(0, len(values), step), len(values) - 1])
    rounds, values = rounds[chosen].astype(float), values[chosen]
    ticks, last = nice(float(values.min()), float(values.max())), float(rounds[-1])
    low, high = ticks[0], ticks[-1]
    wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(t: float) -> float:
        return _LEFT + wide * t / last

    def y(value: float) -> float:
        return _TOP + tall * (1 - (value - low) / ((high - low) or 1.0))

    grid = "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="currentColor" '
        f'stroke-opacity=".15"/><text x="{_LEFT - 6}" y="{y(v) + 3.5:.1f}" text-anchor="end">{v:g}</text>'
        for v in ticks
    )
    below = "".join(
        f'<text x="{x(t):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{t:g}</text>'
        for t in nice(0.0, last, most=5)
        if t <= last
    )
    points = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in zip(rounds, values, strict=True))
    return (
        f'<svg role="img" aria-label="{escape(title)} by round" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" style="max-width:100%;{_FONT}font-size:11px" fill="currentColor">'
        f'<text x="{_LEFT}" y="15" font-size="12" font-weight="600">{escape(title)}</text>{grid}{below}'
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 2}" text-anchor="end" fill-opacity=".65">round</text>'
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
        f'<circle cx="{x(last):.1f}" cy="{y(float(values[-1])):.1f}" r="3" fill="{colour}"/></svg>'
    )


def nice(low: float, high: float, most: int = 4) -> Sequence[float]:
    """About `most` round numbers, evenly spaced, of which the first and the last enclose two finite numbers."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough)
    return [k * step for k in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def finite(history: Mapping[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """The rounds in which a figure was measured and finite, counted from 1, and its values in them."""
    values = np.asarray(history.get(name, ()))
    if not values.size or values.dtype.kind not in "fiub":
        return np.empty(0), np.empty(0)
    there = np.isfinite(values.astype(float))
    return np.asarray(history["round"])[there] + 1, values[there].astype(float)


def _words(name: str, loss: str = "loss") -> str:
    """The name of a figure as people write it; `loss` is what that of training is called."""
    return {"loss": loss, "epsilon": "ε"}.get(name, name.replace("_", " "))
