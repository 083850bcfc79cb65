"""How figures look: one colour and line for each method, the same everywhere, also for colour-blind readers."""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from fedmime.errors import ConfigError
from fedmime.report.line_ends import label_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["colour", "figure", "label_lines", "line", "lines", "look", "styled"]
Dash = str | tuple[int, tuple[float, ...]]
INK, MUTED, GRID, PAPER = "#1f2328", "#646c75", "#d9dee4", "#fffffe"  # text, lesser text, rules, behind marks


class Look(NamedTuple):
    """A method's colour on light and on dark ground, and its line where the label names no base optimizer."""

    light: str
    dark: str
    dash: Dash = "-"


_DASHED, _DOTTED, _DASH_DOT = (0, (5, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2))
_SHORT, _LONG, _DASH_DOT_DOT = (0, (2.6, 1.3)), (0, (9, 3)), (0, (6, 2, 1.2, 2, 1.2, 2))
METHODS = {  # longer names first: "MimeLite" is no "Mime"
    "Loc-MimeLite": Look("#4a9e8b", "#6ad0ba", _SHORT),
    "Loc-Mime": Look("#2f95d6", "#9ad2f7", _DASHED),
    "MimeLiteMVR": Look("#8a7a00", "#d9c53d", _DASH_DOT),
    "MimeMVR": Look("#4b3fa8", "#a79bf5", _DASH_DOT),
    "MimeLite": Look("#00936b", "#3ddba9"),
    "Mime": Look("#0a5fa8", "#4f9ff0"),
    "FedAvg": Look("#d55e00", "#ff8a3d"),
    "FedProx": Look("#b98600", "#efc24a", _SHORT),
    "SCAFFOLD": Look("#a63a7c", "#f3a9d3"),
    "FedDyn": Look("#7c3b12", "#c9895f", _LONG),
    "FedNova": Look("#c01f46", "#e15477", _DASHED),
    "FedVARP": Look("#1ea41b", "#55e250", _DOTTED),
    "FedExP": Look("#1e4869", "#7890be", _SHORT),
    "FedCM": Look("#5d2c2e", "#e36a52", _DASH_DOT),
    "GHBM": Look("#a321c7", "#c952e1", _LONG),
    "FedACG": Look("#229cb5", "#a6edf0", _DASH_DOT_DOT),
    "DiLoCo": Look("#2022c5", "#505ae2", _DASHED),
    "Server-only MVR": Look("#6b7079", "#a3abb6", _DASH_DOT_DOT),
    "Server-only": Look("#6b7079", "#a3abb6", _DOTTED),
    "Centralized": Look("#1f2327", "#e6e9ee", _LONG),
}
BASES: dict[str, tuple[Dash, str]] = {  # the base optimizer in a label decides dash and marker
    "sgd": ("-", ""),
    "momentum": ("-", "o"),
    "mom": ("-", "o"),
    "adam": (_DASHED, "s"),
    "adagrad": (_DASH_DOT, "^"),
    "rmsprop": (_DOTTED, "D"),
    "yogi": (_LONG, "v"),
    "sm3": (_DASH_DOT_DOT, "P"),
    "adafactor": (_DOTTED, "X"),
    "nesterov": (_SHORT, "p"),
}
_SPARE = (
    Look("#a1242c", "#ff8f8f"),
    Look("#3f6f00", "#a5cf5a"),
    Look("#8a3fc0", "#cf9df5"),
    Look("#00797d", "#5accd0"),
)
_CYCLE: tuple[Dash, ...] = ("-", _DASHED, _DASH_DOT, _DOTTED, _LONG, _DASH_DOT_DOT)
_LONGEST = 28  # characters of a label in a figure
_ALIASES = {"fedopt": "FedAvg", "centralised": "Centralized"}


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


_NAMES = {_plain(name): name for name in METHODS} | _ALIASES


def method(label: str) -> str | None:
    """The method that a label names: "MimeLiteAdam", "mime_lite (adam)" and "MimeLite" are one; None if unknown."""
    return next((name for plain, name in _NAMES.items() if _plain(label).startswith(plain)), None)


def base(label: str) -> str | None:
    """The base optimizer that a label names after the method, None if it names none."""
    plain = _plain(label)
    prefix = next((known for known in _NAMES if plain.startswith(known)), "")
    return next((name for name in BASES if plain.removeprefix(prefix).startswith(name)), None)


def look(label: str) -> Look:
    """The colours and dash of a label; names that are no method get a colour of their own, always the same."""
    name = method(label)
    return METHODS[name] if name else _SPARE[zlib.crc32(_plain(label).encode()) % len(_SPARE)]


def colour(label: str) -> str:
    """The colour of a label on light ground; reports replace it on dark ground."""
    return look(label).light


def shown(label: str) -> str:
    """A label as figures write it: not too long, and a dollar is a dollar, not the start of a formula."""
    return (label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…").replace("$", r"\$")


def line(label: str) -> dict[str, Any]:
    """Keyword arguments of `Axes.plot` for a label."""
    known = base(label)
    dash, marker = BASES[known] if known else (look(label).dash, "")
    return {"color": colour(label), "linestyle": dash, "marker": marker, "markevery": 0.12, "label": shown(label)}


def lines(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The lines of labels shown together: a second line that would look the same gets another dash."""
    chosen: dict[str, dict[str, Any]] = {}
    for label in labels:
        wanted = line(label)
        taken = [other["linestyle"] for other in chosen.values() if _alike(other, wanted)]
        free = [dash for dash in (wanted["linestyle"], *_CYCLE) if dash not in taken]
        chosen[label] = wanted | {"linestyle": free[0] if free else wanted["linestyle"]}
    return chosen


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return (one["color"], one["marker"]) == (other["color"], other["marker"])


_DEFAULTS = {
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "hatch.linewidth": 0.6,
    "hatch.color": MUTED,
    "savefig.dpi": 200,
    "svg.fonttype": "none",  # text stays text: it can be selected, and takes the page's font
    "svg.hashsalt": "fedmime",  # the same figure gives the same file
    "pdf.fonttype": 42,
}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's defaults for as long as a figure is drawn and saved."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise ConfigError("figures are drawn by Matplotlib, an extra: pip install 'fedmime[plot]'") from None
    with mpl.rc_context(_DEFAULTS):  # pyright: ignore[reportArgumentType]
        yield


def figure(width: float = 6.4, height: float = 3.8) -> Figure:
    """An empty figure that needs no window and is known to no global list; inches. Call it in `styled()`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    empty = Figure(figsize=(width, height))
    FigureCanvasAgg(empty)
    return empty


def dark_colours() -> dict[str, str]:
    """What each colour of a figure becomes on dark ground."""
    ground = {INK: "#e4e7eb", MUTED: "#9aa4af", GRID: "#333a42", PAPER: "#14171b"}
    return ground | {each.light: each.dark for each in (*METHODS.values(), *_SPARE)}
