"""Dialects: how a request is put to one kind of node. What a node answers does not depend on its dialect."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax

from fedmime.aggregation import wire
from fedmime.aggregation.aggregator import Broadcaster
from fedmime.algorithms.algorithm import Message
from fedmime.deploy.layout import Layout
from fedmime.deploy.messages import NOTHING, PRIME, Ask, packed
from fedmime.engine.backends.backend import Work
from fedmime.vector import Vector


class Offer(NamedTuple):
    """What the server has to send in one exchange of a round, to whom it may concern."""

    work: Work
    points: tuple[Vector, ...]
    """Where full gradients are asked for, as clients receive them."""
    message: Message | None
    """What clients train from, as they receive it; None where nobody trains in this exchange."""
    broadcaster: Broadcaster
    """How these arrays are encoded."""


class Dialect(Protocol):
    """How a request is put to nodes of one kind, in one round."""

    def request(self, ask: Ask, offer: Offer) -> bytes:
        """The bytes of a request that holds what the client needs and was not sent in this round before.

        Args:
            ask: the request, but for what belongs to a dialect.
            offer: what the server has to send.
        """
        ...


class JaxDialect:
    """Requests to nodes that have the algorithm themselves: the arrays of the points and of the message.

    It serves one round, in which it remembers what each client was sent.

    Args:
        layout: of the algorithm's messages.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._sent: dict[int, set[int]] = {}  # slots by client
        self._packed: dict[int, tuple[int, bytes]] = {}  # stream and bytes of an array, by slot: the same for all

    def request(self, ask: Ask, offer: Offer) -> bytes:
        """See `Dialect.request`."""
        arrays: dict[int, Any] = {}
        if ask.gradients != NOTHING:
            places = self._layout.prime if ask.gradients == PRIME else self._layout.points
            arrays |= places.by_slot(offer.points)
        if ask.train:
            assert self._layout.message is not None
            arrays |= self._layout.message.by_slot(offer.message)
        sent = self._sent.setdefault(ask.client, set())
        slots = sorted(arrays.keys() - sent)
        sent.update(slots)
        for slot in slots:
            if slot not in self._packed:
                form = jax.device_get(offer.broadcaster.wire(arrays[slot]))
                self._packed[slot] = offer.broadcaster.stream(arrays[slot]), wire.pack(form)
        pairs = tuple((slot, self._packed[slot][0]) for slot in slots)
        return packed(ask._replace(arrays=pairs), b"".join(self._packed[slot][1] for slot in slots))
