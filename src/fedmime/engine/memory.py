"""Client memory: what clients of stateful algorithms (SCAFFOLD, FedDyn) keep between the rounds they take part in.

There is one interface and two implementations, `RamMemory` here and `DiskMemory` for a run with a directory. Only
clients that have been seen take room, so that a population of millions costs nothing by itself. `write` returns the
memory to continue with. `RamMemory` leaves the old one unchanged, so that a state can be used again; `DiskMemory`
changes its file, but never overwrites what the last checkpoint refers to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import jax
import numpy as np

from fedmime.aggregation.aggregator import Aggregator, distinct
from fedmime.algorithms.abstract import reply_of
from fedmime.algorithms.algorithm import Algorithm, Server


class ClientMemory(Protocol):
    """The interface through which a back end reads and writes what clients keep.

    Clients are identified by their positions in the population. A value is a pytree of arrays, of the same structure
    for all clients.
    """

    def read(self, clients: Sequence[int]) -> list[Any]:
        """The values that these clients keep, in order; a client never seen has `Algorithm.remember`."""
        ...

    def write(self, clients: Sequence[int], values: Sequence[Any]) -> Self:
        """The memory after each of these clients has replaced its value."""
        ...

    def __len__(self) -> int:
        """The number of clients that have been seen."""
        ...


@jax.tree_util.register_pytree_node_class
class RamMemory:
    """A client memory in a dictionary. It is immutable and a pytree, so that it can be part of a state.

    Args:
        blank: the value of a client that was never seen.
        kept: values by position in the population.
    """

    def __init__(self, blank: Any, kept: Mapping[int, Any] | None = None) -> None:
        self._blank = blank
        self._kept = dict(kept or {})

    def __len__(self) -> int:
        return len(self._kept)

    def read(self, clients: Sequence[int]) -> list[Any]:
        """See `ClientMemory.read`."""
        return [self._kept.get(client, self._blank) for client in clients]

    def write(self, clients: Sequence[int], values: Sequence[Any]) -> Self:
        """A new memory with these values; this one stays as it is. See `ClientMemory.write`."""
        return type(self)(self._blank, {**self._kept, **dict(zip(clients, values, strict=True))})

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        return (self._blank, self._kept), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any, Any]) -> Self:
        return cls(*children)


def empty_memory(blank: Any) -> RamMemory | None:
    """The memory before the first round, in which no client was seen; None if clients keep nothing.

    Args:
        blank: the value of a client that was never seen, a pytree without arrays if clients keep nothing.
    """
    return RamMemory(blank) if jax.tree.leaves(blank) else None


def remembered(algorithm: Algorithm, aggregator: Aggregator, server: Server) -> Any:
    """What a client that was never seen has kept; with error feedback also what its encodings lost, which is zero."""
    kept = jax.tree.map(np.asarray, algorithm.remember(server.x))
    if not aggregator.error_feedback:
        return kept
    sent = reply_of(algorithm, server, lambda reply: distinct((reply.send, reply.add))[0])
    return kept, [np.zeros(leaf.shape, leaf.dtype) for leaf in sent]
