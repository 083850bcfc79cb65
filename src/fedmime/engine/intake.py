"""The gate before a round: data that a problem cannot take is refused, a client that is not finite is left out."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from fedmime.engine.cohort import ClientId, Cohort, Columns, Member, client_id
from fedmime.engine.notes import notes, warnings
from fedmime.errors import DataError
from fedmime.validation import not_finite, unscaled

Check = Callable[[Mapping[str, np.ndarray]], None]
_FIRST = 100  # clients of a store of which the problem must fit one
_MOST = 20  # warnings; further findings are in the run's log only
_said_of_rounds: set[object] = set()  # by this process, of rounds outside a run


class Intake:
    """Looks at clients' data before they train, and says what it finds.

    Data that the problem cannot take is an error in a single round, and before a run's first round. A run looks at
    each client once; while it goes on, it leaves such a client out, as it does one whose numbers are not finite.
    """

    def __init__(self, check: Check, once: bool = False, said: set[object] = _said_of_rounds) -> None:
        self._check, self._once, self._said = check, once, said
        self._sound: set[int] = set()
        self._refused: set[int] = set()
        self._findings: list[str] = []  # to be said

    @classmethod
    def of_run(cls, check: Check, pooled: bool) -> Self:
        """That of a run. Examples that are pooled anew for every round are looked at in every round."""
        return cls(check, once=not pooled, said=set())

    def look_at_all(self, population: Any) -> None:
        """Look at every client. What is found is told by `say`."""
        for index, client in _clients(population):
            data = population.client_at(index)
            self.accept(f"client {client!r}", data)
            bad = self._judge(index, client, data)
            if bad and not self._once:
                raise DataError(f"client {client!r}, {bad}; pooled examples cannot do without their client")

    def look_at_first(self, population: Any) -> None:
        """Look at clients until the problem fits one; if it fits none of the first, it is the problem that is wrong."""
        first: DataError | None = None
        for index, client in itertools.islice(_clients(population), _FIRST):
            try:
                return self.accept(f"client {client!r}", population.client_at(index))
            except DataError as error:
                first = first or error
        assert first is not None
        raise first

    def admit(self, cohort: Cohort) -> tuple[Cohort, tuple[int, ...]]:
        """The cohort without the clients that are refused, and the positions of those clients.

        One example that is not finite would spoil the cohort's mean gradient before any reply could be looked at.
        """
        if not self._once:
            self._sound, self._refused = set(), set()
        for member in cohort.members:
            if member.index in self._sound or member.index in self._refused:
                continue
            client = cohort.client_id(member.index)
            try:
                self.accept(f"client {client!r}", member.data)
            except DataError as error:
                if not self._once:
                    raise
                self._refuse(member.index, str(error))
            else:
                self._judge(member.index, client, member.data)
        for index, error in cohort.unfit.items():
            self._refuse(index, error)
        self.say()
        refused = {m.index for m in cohort.members} & self._refused
        if not refused and not cohort.unfit:
            return cohort, ()
        keep = dataclasses.replace(
            cohort,
            members=tuple(m for m in cohort.members if m.index not in refused),
            weights=_of(cohort.weights, cohort.training, refused),
            gradient_weights=_of(cohort.gradient_weights, cohort.probing, refused),
        )
        return keep, (*dict.fromkeys(m.index for m in cohort.members if m.index in refused), *cohort.unfit)

    def say(self) -> None:
        """Tell what was found since the last time; the first findings are told on the console, too."""
        before = len(self._said) - len(self._findings)
        for place, finding in enumerate(self._findings, before):
            (warnings.warning if place < _MOST else notes.info)(finding)
        self._findings.clear()

    def accept(self, whose: str, data: Columns) -> None:
        """Raise if the problem cannot take somebody's data."""
        for name, values in data.items():
            if values.dtype == object:
                raise DataError(f"{whose}: field {name!r} must hold examples of one length, got ragged ones; pad them")
        try:
            self._check(data)
        except DataError as error:
            raise DataError(f"{whose}: {error}") from None

    def _judge(self, index: int, client: ClientId, data: Columns) -> str | None:
        """What is not finite of a client, if anything. Images that were never scaled are no reason to refuse it."""
        bad = next(not_finite(data), None)
        if bad is None:
            self._sound.add(index)
        else:
            self._refuse(index, f"client {client!r}, {bad}")
        for name, values in data.items():
            floats = values.dtype.kind == "f"  # bytes are for the loss to scale
            if floats and ("unscaled", name) not in self._said and (found := unscaled(name, values)):
                self._find(f"client {client!r}, {found}", ("unscaled", name))
        return bad

    def _refuse(self, index: int, why: str) -> None:
        self._refused.add(index)
        self._find(f"{why}; the client is left out")

    def _find(self, finding: str, what: object = None) -> None:
        """Have a finding said, unless it was, or another one of the same."""
        if (what := what or finding) not in self._said:
            self._said.add(what)
            self._findings.append(finding)


def _clients(population: Any) -> Iterator[tuple[int, ClientId]]:
    """Positions and ids of the clients that have examples."""
    ids = getattr(population, "ids", None)
    for index in np.flatnonzero(population.sizes).tolist():
        yield index, client_id(ids, index)


def _of(weights: np.ndarray | None, members: tuple[Member, ...], refused: set[int]) -> np.ndarray | None:
    if weights is None:
        return None
    return np.asarray([w for w, m in zip(weights, members, strict=True) if m.index not in refused])
