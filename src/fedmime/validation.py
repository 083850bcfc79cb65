"""What can be wrong with a client's columns, for `fedmime data verify` and for runs: they say the same of the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np


def not_finite(columns: Mapping[str, np.ndarray]) -> Iterator[str]:
    """For every field with NaN or infinite values, which it is and how many it has."""
    for name, values in columns.items():
        bad = int((~np.isfinite(values)).sum()) if values.dtype.kind in "fc" else 0
        if bad:
            yield f"field {name!r} has {bad} NaN or infinite values of {values.size}; accepted are finite numbers"


def unscaled(name: str, values: np.ndarray) -> str | None:
    """What to say of images that hold bytes, or floats that were bytes; None of others."""
    if values.ndim < 3 or not values.size or values.dtype.kind not in "fu":
        return None
    if not 16 < values.max() <= 255 or values.min() < 0:
        return None
    return f"field {name!r} lies in [0, 255]; models expect [0, 1]: divide by 255"
