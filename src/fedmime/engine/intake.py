"""The gate before a round: data that a problem cannot take is an error, a client that is not finite is left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from fedmime.engine.cohort import Cohort, Member
from fedmime.errors import DataError

Check = Callable[[Mapping[str, np.ndarray]], None]


class Intake:
    """Looks at clients' data before they train; in a run, at each client once."""

    def __init__(self, check: Check, once: bool = False) -> None:
        self._check, self._once = check, once
        self._sound: set[int] = set()
        self._damaged: set[int] = set()

    def admit(self, cohort: Cohort) -> tuple[Cohort, tuple[int, ...]]:
        """The cohort without clients that hold NaN or infinite numbers, and the positions of those clients.

        One such example would spoil the cohort's mean gradient before any reply could be looked at.
        """
        if not self._once:
            self._sound, self._damaged = set(), set()
        fresh = [m for m in cohort.members if m.index not in self._sound and m.index not in self._damaged]
        for member in fresh:
            try:
                self._check(member.data)
            except DataError as error:
                raise DataError(f"client {member.index}: {error}") from None
            (self._sound if _finite(member) else self._damaged).add(member.index)
        damaged = {m.index for m in cohort.members} & self._damaged
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
