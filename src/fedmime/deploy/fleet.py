"""A fleet: the clients of a deployed run, as the engine sees them. Their names and sizes are known, their data is not.

Who belongs to a run is settled when it begins and written to its directory: a client's position decides its random
numbers, so a resumed run needs the same clients in the same order, whoever is connected at that moment.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedmime.deploy.secret import Secret
from fedmime.deploy.secure.options import SecureSum, fields_of, of_fields
from fedmime.errors import CheckpointError, ConfigError, DataError
from fedmime.files import read_object, whole_file
from fedmime.runs import identity


class Registered(NamedTuple):
    """A client as it said hello when the run began; it takes part as long as it says the same."""

    name: str
    examples: int
    data: str
    """SHA-256 of its examples."""


@dataclasses.dataclass(frozen=True, eq=False)
class Fleet:
    """A population without data; see `fedmime.engine.sampling.Clients`.

    Attributes:
        clients: the clients by position.
        ids: their pseudonyms, which logs and reports use.
        sampling_seed: from which cohorts are drawn.
        test: columns of the server's own test set, if it has one.
    """

    clients: tuple[Registered, ...]
    ids: tuple[str, ...]
    sampling_seed: int
    test: Mapping[str, np.ndarray] | None = None
    name: ClassVar[str] = "fleet"
    elsewhere: ClassVar[bool] = True

    @property
    def sizes(self) -> np.ndarray:
        """n_i, the number of examples of each client [clients]."""
        return np.array([client.examples for client in self.clients], np.int64)

    def client_at(self, index: int) -> Mapping[str, np.ndarray]:
        """Raise `DataError`: what a client has stays with it."""
        raise DataError(f"{self.ids[index]}: the examples of a deployed client cannot be read")

    def identity(self) -> str:
        """A digest of who the clients are and what they said of their data."""
        return identity.digest({"clients": list(self.clients)})


class Registry(NamedTuple):
    """What a run directory holds of a deployed run beside what a simulation writes."""

    run: str
    """The run's identity, by which clients recognise it."""
    clients: tuple[Registered, ...]
    secure: SecureSum | None = None
    """How messages are masked: a run that was begun with masks never goes on without them."""

    @classmethod
    def read(cls, path: Path) -> Registry:
        """The registry in a file."""
        try:
            found: Any = read_object(path)
            clients = tuple(Registered(str(name), int(n), str(data)) for name, n, data in found["clients"])
            return cls(str(found["run"]), clients, of_fields(found.get("secure")))
        except (ValueError, KeyError, TypeError, ConfigError) as error:
            raise CheckpointError(f"the registry of clients {str(path)!r} is damaged: {error}") from None

    def write(self, path: Path) -> None:
        """Write it to a file that only the user can read: it says which client has which pseudonym's place."""
        with whole_file(path, mode=0o600) as temporary:
            temporary.write_text(json.dumps(self._asdict() | {"secure": fields_of(self.secure)}, indent=1))

    def fleet(self, secret: Secret, sampling_seed: int, test: Mapping[str, np.ndarray] | None) -> Fleet:
        """The population of the run."""
        ids = tuple(secret.pseudonym(client.name) for client in self.clients)
        return Fleet(self.clients, ids, sampling_seed, test)


def in_order(clients: Iterable[Registered]) -> tuple[Registered, ...]:
    """Clients in the order of their names, numbers in them counted as numbers: `c2` comes before `c10`."""
    return tuple(sorted(clients, key=lambda client: _natural(client.name)))


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"([0-9]+)", name)
    return [(1, int(part), part) if part.isdecimal() else (0, 0, part) for part in parts]
