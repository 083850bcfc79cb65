"""Intake: the check of clients' data before they train.

Data that does not fit the problem is an error; a client with values that are not finite is left out. Without this
check, a single NaN in one example would spoil the mean gradient of the whole cohort before any reply could be examined.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from fedmime.engine.cohort import ClientId, Cohort, Columns, client_id
from fedmime.errors import ClientError, DataError
from fedmime.runs.notes import notes, warnings
from fedmime.validation import not_finite, unscaled

Check = Callable[[Mapping[str, np.ndarray]], None]
_FIRST = 100  # clients of a stored population of which the problem must accept at least one
_MOST = 20  # findings that are reported on the console; further ones are in the run's log only
_said_of_rounds: set[object] = set()  # findings that this process reported in rounds outside of a run


class Intake:
    """Checks clients' data and reports what it finds.

    Data that the problem cannot take is an error in a single round (`run_round`) and before the first round of a run.
    While a run is going on, such a client is left out, like one with values that are not finite, because ending a long
    run for it would be worse. A run checks each client once.

    Args:
        check: the problem's check, which raises `DataError` for data that it cannot take.
        once: whether clients are remembered, as in a run, and bad ones left out instead of raising an error.
        said: findings that were reported before and are not repeated; by default those of this process.
    """

    def __init__(self, check: Check, once: bool = False, said: set[object] = _said_of_rounds) -> None:
        self._check, self.once, self._said = check, once, said
        self._known: dict[int, str | None] = {}  # checked clients, with the reason to leave them out, if any
        self._findings: list[str] = []  # not reported yet

    @classmethod
    def of_run(cls, check: Check, pooled: bool) -> Self:
        """The intake of a run.

        Pooled examples are drawn anew in every round, so that they are checked in every round.
        """
        return cls(check, once=not pooled, said=set())

    def look_at_all(self, population: Any) -> None:
        """Check every client of a population in memory, before the first round; `say` then reports the findings.

        Raises:
            DataError: the problem cannot take a client's data, or examples that are to be pooled are not finite. Pooled
                examples belong to no client that could be left out.
        """
        for index, client in _clients(population):
            data = population.client_at(index)
            self.accept(f"client {client!r}", data)
            bad = self._check_values(index, client, data)
            if bad and not self.once:
                raise DataError(f"client {client!r}, {bad}; pooled examples cannot do without their client")

    def look_at_first(self, population: Any) -> None:
        """Check clients of a stored population until the problem accepts one.

        If it accepts none of the first `_FIRST`, the problem and not the data is taken to be wrong, and the first error
        is raised.
        """
        first: DataError | None = None
        for index, client in itertools.islice(_clients(population), _FIRST):
            try:
                return self.accept(f"client {client!r}", population.client_at(index))
            except DataError as error:
                first = first or error
        assert first is not None
        raise first

    def refuses(self, cohort: Cohort, place: int) -> str | None:
        """Why the member at a place of a cohort must be left out of the round; None if its data is sound.

        In a run the data of each client is read and checked once.
        """
        index = cohort.members[place].client
        if self.once and index in self._known:
            return self._known[index]
        self._known[index] = None
        client = cohort.client_id(index)
        try:
            data = cohort.source.examples(place)
            self.accept(f"client {client!r}", data)
        except DataError as error:
            if not self.once and not isinstance(error, ClientError):
                raise
            self._refuse(index, str(error))
        else:
            self._check_values(index, client, data)
        self.say()
        return self._known[index]

    def say(self) -> None:
        """Report the findings since the last call: the first `_MOST` as warnings, others in the run's log."""
        before = len(self._said) - len(self._findings)
        for place, finding in enumerate(self._findings, before):
            (warnings.warning if place < _MOST else notes.info)(finding)
        self._findings.clear()

    def repeat(self, findings: Iterable[tuple[str, object]]) -> None:
        """Report what the intakes of other processes have found, unless it was reported before."""
        for finding, what in findings:
            self._find(finding, what)
        self.say()

    def accept(self, whose: str, data: Columns) -> None:
        """Raise `DataError` if the problem cannot take these columns.

        Args:
            whose: who has them, for the message, such as `client 7` or `test set`.
            data: columns by field, each [examples, ...].
        """
        for name, values in data.items():
            if values.dtype == object:
                raise DataError(f"{whose}: field {name!r} must hold examples of one length, got ragged ones; pad them")
        try:
            self._check(data)
        except DataError as error:
            raise DataError(f"{whose}: {error}") from None

    def _check_values(self, index: int, client: ClientId, data: Columns) -> str | None:
        """Check the values of a client's columns and note what is wrong with them.

        Images with values up to 255 are reported but accepted; the loss may scale them itself.

        Returns:
            What is not finite, in words; None if all values are.
        """
        bad = next(not_finite(data), None)
        if bad is None:
            self._known[index] = None
        else:
            self._refuse(index, f"client {client!r}, {bad}")
        for name, values in data.items():
            floats = values.dtype.kind == "f"  # a model that takes bytes scales them itself
            if floats and ("unscaled", name) not in self._said and (found := unscaled(name, values)):
                self._find(f"client {client!r}, {found}", ("unscaled", name))
        return bad

    def _refuse(self, index: int, why: str) -> None:
        """Remember that a client is left out, and report the reason."""
        self._known[index] = why
        self._find(f"{why}; the client is left out")

    def _find(self, finding: str, what: object = None) -> None:
        """Queue a finding for `say`, unless it was reported before.

        Args:
            finding: the message.
            what: the key under which repetitions are recognised; by default the message itself.
        """
        if (what := what or finding) not in self._said:
            self._said.add(what)
            self._findings.append(finding)


def _clients(population: Any) -> Iterator[tuple[int, ClientId]]:
    """The positions and ids of the clients that have examples."""
    ids = getattr(population, "ids", None)
    for index in np.flatnonzero(population.sizes).tolist():
        yield index, client_id(ids, index)
