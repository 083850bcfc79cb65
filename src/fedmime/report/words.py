"""Numbers as people read them; a dash where there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence

NOTHING = "–"
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


def percent(share: float | None) -> str:
    """A share as per cent with one decimal."""
    return NOTHING if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def goal(share: float) -> str:
    """An accuracy to reach as per cent, without needless figures."""
    return f"{100 * share:g} %"


def whole(value: float | None) -> str:
    """A count with separators."""
    return NOTHING if value is None or not math.isfinite(value) else f"{int(value):,}"


def figure(value: float | None) -> str:
    """A loss with four figures."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.4g}"


def megabytes(count: float | None) -> str:
    """Bytes as MB with three figures, or all figures before the point."""
    if count is None or not math.isfinite(count):
        return NOTHING
    value = count / 1e6
    decimals = 0 if value >= 99.95 or value == 0 else 1 if value >= 9.995 else 2
    return f"{value:,.{decimals}f}"


def duration(seconds: float | None) -> str:
    """A time in the two units that matter."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence: `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def unit(largest: float) -> tuple[float, str]:
    """The unit in which a number of bytes is said, and its size."""
    return next(((size, name) for size, name in _UNITS if largest >= size), _UNITS[-1])


def short(value: object) -> str:
    """A setting: numbers without needless figures, nothing as a dash."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(short, value))
    return str(value)
