"""Whom an evaluation measures: which clients, on which examples, and on which examples they are fine-tuned before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmime.engine.cohort import ClientId, client_id
from fedmime.engine.hold_out import Part
from fedmime.engine.metrics import evenly_spaced
from fedmime.errors import ConfigError, DataError
from fedmime.validation import count, quote, whole

Chosen = int | Sequence[ClientId] | None


class Subjects(NamedTuple):
    """The clients of an evaluation."""

    measured: Any
    """A population with the examples on which clients are measured."""
    on: str
    """Which examples these are: `"test"`, `"train"` or `"held out"`."""
    positions: np.ndarray
    """[clients] their positions in `measured`."""
    training: Any = None
    """A population with the examples on which they are fine-tuned."""
    homes: np.ndarray | None = None
    """[clients] their positions in `training`."""

    @property
    def ids(self) -> tuple[ClientId, ...]:
        """The clients' names, or positions if they have none."""
        names = getattr(self.measured, "ids", None)
        return tuple(client_id(names, int(i)) for i in self.positions)


def subjects(population: Any, clients: Chosen, split: str) -> Subjects:
    """The clients to measure on their test examples if they have any, or else on their training examples.

    Args:
        clients: None for all with examples, a number for so many of them, evenly spaced, or their ids.
        split: `"test"`, or `"train"` for training examples in any case.
    """
    held_out = getattr(population, "test_clients", None) if split == "test" else None
    measured, on = (population, "train") if held_out is None else (held_out, "test")
    return Subjects(measured, on, _chosen(measured, clients, measured.sizes > 0, "no examples"))


def tunable_subjects(population: Any, clients: Chosen, fraction: float, seed: int) -> Subjects:
    """The clients to fine-tune and to measure on examples that fine-tuning does not see.

    Clients with test examples in `population.test_clients` are fine-tuned on their training examples. If there are
    none, or if they are other clients than those who train, a fraction of each client's examples is held out.
    """
    tested = getattr(population, "test_clients", None)
    if tested is not None:
        homes = _homes(tested, population)
        able = (tested.sizes > 0) & (homes >= 0)
        able[able] = population.sizes[homes[able]] > 0
        if able.any():
            positions = _chosen(tested, clients, able, "not both training and test examples")
            return Subjects(tested, "test", positions, population, homes[positions])
    everyone = population if tested is None else tested
    held, rest = (Part(everyone, fraction, seed, held=held) for held in (True, False))
    positions = _chosen(held, clients, held.sizes > 0, "fewer than two examples")
    return Subjects(held, "held out", positions, rest, positions)


def _homes(tested: Any, population: Any) -> np.ndarray:
    """The position in the population of each test client, -1 for one that does not train there."""
    names, known = getattr(tested, "ids", None), getattr(population, "ids", None)
    if names is None or known is None:
        return np.arange(len(tested.sizes))
    return np.asarray([known.index(name) if name in known else -1 for name in names], int)


def _chosen(measured: Any, clients: Chosen, able: np.ndarray, otherwise: str) -> np.ndarray:
    """The positions of the clients that are asked for.

    Args:
        able: [clients] whether each of them can be measured.
        otherwise: what the others have, for messages.
    """
    everyone = np.flatnonzero(able)
    if not len(everyone):
        raise DataError(f"evaluate: the population has no client to measure: all have {otherwise}")
    if clients is None:
        return everyone
    if whole(clients):
        return evenly_spaced(everyone, count("evaluate", "clients", clients, least=1))
    if isinstance(clients, str | bytes | bool) or not isinstance(clients, Sequence | np.ndarray) or not len(clients):
        raise ConfigError(f"evaluate: clients must be None, a number or a list of ids, got {quote(clients)}")
    names = getattr(measured, "ids", None)
    positions = [_position(names, len(able), client) for client in clients]
    for position, client in zip(positions, clients, strict=True):
        if not able[position]:
            raise DataError(f"evaluate: clients: {client!r} cannot be measured, it has {otherwise}")
    return np.asarray(positions)


def _position(names: Sequence[str] | None, clients: int, client: Any) -> int:
    if names is None:
        return count("evaluate", "clients", client, most=clients - 1)
    if client not in names:
        raise DataError(f"evaluate: clients: there is no {client!r}; ids look like {names[0]!r}")
    return names.index(client)
