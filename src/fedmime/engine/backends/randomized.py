"""Whether a loss draws random numbers, as dropout does."""

from __future__ import annotations

from typing import Any

from fedmime.engine.cohort import Columns
from fedmime.engine.contract import traced_loss


def draws_random_numbers(problem: Any, model: Any, sample: Columns) -> bool:
    """Whether the loss uses its key, found out by tracing it once for each kind of model and batch."""
    jaxpr = traced_loss(problem, model, sample).jaxpr
    key = jaxpr.invars[-1]
    return any(v is key for equation in jaxpr.eqns for v in equation.invars)
