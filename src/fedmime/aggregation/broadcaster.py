"""Broadcasts: what clients receive of the arrays that the server sends in a round."""

from __future__ import annotations

import functools
from typing import Any

import jax

from fedmime.aggregation.aggregator import Aggregator, Wire, sender_of
from fedmime.aggregation.encoder import BROADCAST, SERVER

EXACT = -1
"""The stream of an array that goes as it is."""


class Broadcaster:
    """The server's arrays on their way to the clients of one round.

    An array that is sent twice, such as x with the request for gradients and again with the message, is encoded once.
    Arrays are recognised by their identity; those that were sent are held, so that their identities stay their own.

    Args:
        aggregator: its `down` encodes what is sent.
        key: the round's.
    """

    def __init__(self, aggregator: Aggregator, key: jax.Array) -> None:
        self._aggregator, self._key = aggregator, key
        self._seen: dict[int, tuple[jax.Array, jax.Array]] = {}  # by identity: an array, and as it is received
        self._encoded: dict[int, tuple[jax.Array, int]] = {}  # by the identity of what is received: array and stream

    def __call__(self, message: Any, exact: Any = ()) -> Any:
        """What clients receive of a message, any pytree; `exact` holds arrays of it that must arrive as they are."""
        if not self._aggregator.down:
            return message
        for leaf in jax.tree.leaves(exact):
            self._seen.setdefault(id(leaf), (leaf, leaf))
        for leaf in jax.tree.leaves(message):
            if id(leaf) not in self._seen:
                stream = len(self._seen)
                received = _received(self._aggregator, leaf, self._key, stream)
                self._seen[id(leaf)] = leaf, received
                self._encoded[id(received)] = leaf, stream
        return jax.tree.map(lambda leaf: self._seen[id(leaf)][1], message)

    def stream(self, received: jax.Array) -> int:
        """The number of the random stream by which an array that clients receive is encoded, or `EXACT`."""
        return self._encoded[id(received)][1] if id(received) in self._encoded else EXACT

    def wire(self, received: jax.Array) -> Any:
        """What is sent for clients to receive this array: its encoded form, or the array itself."""
        if id(received) not in self._encoded:
            return received
        array, stream = self._encoded[id(received)]
        return _encode(self._aggregator, array, self._key, stream)


def wire_like(aggregator: Aggregator, like: Any, stream: int) -> Any:
    """The structure of what is sent for an array of this shape and type."""
    return like if stream == EXACT else jax.eval_shape(_encode, aggregator, like, jax.random.key(0), stream)


def received(aggregator: Aggregator, wire: Any, like: Any, key: jax.Array, stream: int) -> jax.Array:
    """The client's half: the array that was sent, of the shape and type of `like`; `key` is the round's."""
    if stream == EXACT:
        return wire
    return _decode(aggregator, wire, key, stream, like=jax.ShapeDtypeStruct(like.shape, like.dtype))


@jax.jit
def _encode(aggregator: Aggregator, array: jax.Array, key: jax.Array, stream: Any) -> Wire:
    return aggregator.encode(array, sender_of(BROADCAST, key, SERVER, stream))


@functools.partial(jax.jit, static_argnames="like")
def _decode(aggregator: Aggregator, wire: Wire, key: jax.Array, stream: Any, like: Any) -> jax.Array:
    return aggregator.decode(wire, like, sender_of(BROADCAST, key, SERVER, stream))


@jax.jit
def _received(aggregator: Aggregator, array: jax.Array, key: jax.Array, stream: Any) -> jax.Array:
    """Both halves at once, as in a simulation, where nothing is packed."""
    sender = sender_of(BROADCAST, key, SERVER, stream)
    return aggregator.decode(aggregator.encode(array, sender), array, sender)
