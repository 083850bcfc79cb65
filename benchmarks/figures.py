"""Medians and ratios of what the peers section measured."""

from __future__ import annotations

from statistics import median
from typing import Any

Section = dict[str, Any]


def value(section: Section, model: str, case: str, entrant: str, figure: str) -> float | None:
    """The median of a figure (`wall` or `cpu` seconds a round), or None where it was not measured."""
    results = section.get("models", {}).get(model, {}).get("cases", {}).get(case, {}).get("results", {})
    samples = results.get(entrant, {}).get(figure) or []
    return median(samples) if samples else None


def ratio(above: float | None, below: float | None) -> float | None:
    """above / below where both are known."""
    return above / below if above is not None and below else None


def recompiled(section: Section) -> int | None:
    """Programs compiled after each case's first round, over all cases; None where nothing was measured."""
    counts = [
        sum(samples.get("compiled", []))
        for model in section.get("models", {}).values()
        for case in model["cases"].values()
        for name, samples in case["results"].items()
        if name == "fedmime" and "absent" not in samples
    ]
    return sum(counts) if counts else None
