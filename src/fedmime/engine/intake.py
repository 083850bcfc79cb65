"""The gate before a round: data that a problem cannot take is an error, a client that is not finite is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fedmime.errors import DataError

Check = Callable[[Mapping[str, np.ndarray]], None]
NOT_FINITE = "its examples hold NaN or infinite numbers"


class Intake:
    """Looks at clients' data before they train; in a run, at each client once."""

    def __init__(self, check: Check, once: bool = False) -> None:
        self._check, self._once = check, once
        self._known: dict[int, str | None] = {}

    def refuses(self, client: int, columns: Mapping[str, np.ndarray]) -> str | None:
        """Why a client must be left out; None if its data is sound.

        One such example would spoil the cohort's mean gradient before any reply could be looked at.
        """
        if self._once and client in self._known:
            return self._known[client]
        try:
            self._check(columns)
        except DataError as error:
            raise DataError(f"client {client}: {error}") from None
        finite = all(np.isfinite(a).all() for a in columns.values() if a.dtype.kind == "f")
        self._known[client] = None if finite else NOT_FINITE
        return self._known[client]
