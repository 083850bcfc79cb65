"""The gate before a round: a client whose data is not finite is left out, and costs nobody else anything."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedmime.engine.cohort import Cohort, Member


def sound(cohort: Cohort) -> tuple[Cohort, tuple[int, ...]]:
    """The cohort without clients that hold NaN or infinite numbers, and the positions of those clients.

    One such example would spoil the cohort's mean gradient before any reply could be looked at.
    """
    damaged = {m.index for m in cohort.members if not _finite(m)}
    if not damaged:
        return cohort, ()
    keep = dataclasses.replace(
        cohort,
        members=tuple(m for m in cohort.members if m.index not in damaged),
        weights=_of(cohort.weights, cohort.training, damaged),
        gradient_weights=_of(cohort.gradient_weights, cohort.probing, damaged),
    )
    return keep, tuple(dict.fromkeys(m.index for m in cohort.members if m.index in damaged))


def _finite(member: Member) -> bool:
    return all(np.isfinite(a).all() for a in member.data.values() if a.dtype.kind == "f")


def _of(weights: np.ndarray | None, members: tuple[Member, ...], damaged: set[int]) -> np.ndarray | None:
    if weights is None:
        return None
    return np.asarray([w for w, m in zip(weights, members, strict=True) if m.index not in damaged])
