"""The gate before a round: data that a problem cannot take is refused, a client that is not finite is left out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from fedmime.engine.cohort import ClientId, Columns, client_id
from fedmime.engine.notes import notes, warnings
from fedmime.errors import ClientError, DataError
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
        self._known: dict[int, str | None] = {}  # clients that were looked at, and why they must be left out
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

    def refuses(self, index: int, client: ClientId, read: Callable[[], Columns]) -> str | None:
        """Why a client must be left out of a round; None if its data is sound. In a run each client is read once.

        One example that is not finite would spoil the cohort's mean gradient before any reply could be looked at.
        """
        if self._once and index in self._known:
            return self._known[index]
        self._known[index] = None
        try:
            data = read()
            self.accept(f"client {client!r}", data)
        except DataError as error:
            if not self._once and not isinstance(error, ClientError):
                raise
            self._refuse(index, str(error))
        else:
            self._judge(index, client, data)
        self.say()
        return self._known[index]

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
            self._known[index] = None
        else:
            self._refuse(index, f"client {client!r}, {bad}")
        for name, values in data.items():
            floats = values.dtype.kind == "f"  # bytes are for the loss to scale
            if floats and ("unscaled", name) not in self._said and (found := unscaled(name, values)):
                self._find(f"client {client!r}, {found}", ("unscaled", name))
        return bad

    def _refuse(self, index: int, why: str) -> None:
        self._known[index] = why
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
