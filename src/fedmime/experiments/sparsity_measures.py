r"""How sparse a vector is, and how much of a step falls where a client has no gradient of its own.

Two measures of density are told side by side. The share of entries that are not exactly zero counts every trace: one
rounding error makes an entry dense. The participation ratio $(\sum_j |v_j|)^2 / (d \sum_j v_j^2)$ weighs entries by
their size. It is k/d for k entries of equal size, 2/π for normal ones, and does not change with the vector's scale.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedmime.vector import by_place


def nonzero_share(v: np.ndarray) -> float:
    """The share of entries that are not exactly zero."""
    return float(np.count_nonzero(v) / v.size)


def effective_density(v: np.ndarray) -> float:
    r"""The participation ratio $(\sum_j |v_j|)^2 / (d \sum_j v_j^2)$, between 1/d and 1; 0 for the vector of zeros."""
    sizes = np.abs(v, dtype=np.float64)
    squares = float(sizes @ sizes)
    return float(sizes.sum()) ** 2 / (v.size * squares) if squares else 0.0


def share_outside(step: np.ndarray, support: np.ndarray) -> float:
    r"""The share of $\|step\|^2$ that falls on the coordinates where `support` is exactly zero; 0 for no step.

    Args:
        support: a client's gradient, or whether its entries differ from zero.
    """
    squares = np.square(step, dtype=np.float64)
    whole = float(squares.sum())
    return float(squares[support == 0].sum()) / whole if whole else 0.0


def layers(params: Any) -> dict[str, slice]:
    """Where the layers of a model, the first level of its pytree, lie in its flat vector."""
    found: dict[str, slice] = {}
    end = 0
    for place, leaf in by_place(params).items():
        name, start = place.partition(".")[0], end
        end += math.prod(np.shape(leaf))
        found[name] = slice(found[name].start if name in found else start, end)
    return found
