"""What can be wrong with the values of a client's columns.

`fedmime data verify` and runs use the same functions, so that they judge and word the same findings alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np


def not_finite(columns: Mapping[str, np.ndarray]) -> Iterator[str]:
    """For every field with NaN or infinite values, a sentence that names it and counts them."""
    for name, values in columns.items():
        bad = int((~np.isfinite(values)).sum()) if values.dtype.kind in "fc" else 0
        if bad:
            yield f"field {name!r} has {bad} NaN or infinite values of {values.size}; accepted are finite numbers"


def unscaled(name: str, values: np.ndarray) -> str | None:
    """A sentence about images that hold bytes, or floats that were bytes; None for other columns.

    Columns with three or more axes are taken for images. Values in [0, 255] with a maximum above 16 are taken for
    bytes: images scaled to [0, 1], or standardised, stay below.
    """
    if values.ndim < 3 or not values.size or values.dtype.kind not in "fu":
        return None
    if not 16 < values.max() <= 255 or values.min() < 0:
        return None
    return f"field {name!r} lies in [0, 255]; models expect [0, 1]: divide by 255"
