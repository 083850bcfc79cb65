"""The layout of messages: which arrays travel between a server and a node, in which order.

Structure never travels. Both sides derive it, from the algorithm and the shapes of its model, by one abstract round:
every array that the server may send in a round has a number, its slot, and one that stands in several places, such as x
among the points and again in the message, has one slot. So it is sent once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedmime.algorithms.abstract import AbstractClient, message_of
from fedmime.algorithms.algorithm import Algorithm
from fedmime.hyperparameters import at_round
from fedmime.vector import Vector, zeros

Shapes = tuple[jax.ShapeDtypeStruct, ...]


class Places(NamedTuple):
    """Where the arrays of a pytree come from."""

    tree: Any
    """Its structure."""
    slots: tuple[int, ...]
    """For each of its leaves the number of the array that stands there."""

    def filled(self, arrays: Mapping[int, Any] | Sequence[Any]) -> Any:
        """The pytree with these arrays, by slot."""
        return jax.tree.unflatten(self.tree, [arrays[slot] for slot in self.slots])

    def by_slot(self, filled: Any) -> dict[int, Any]:
        """The arrays of such a pytree by slot."""
        return dict(zip(self.slots, self.tree.flatten_up_to(filled), strict=True))


class Parcel(NamedTuple):
    """A message that clients send: arrays, each once, and the pytree that the server makes of them.

    It is hashable, so that programs can be compiled for it.
    """

    shapes: Shapes
    places: Places

    def arrays(self, message: Any) -> list[Any]:
        """The arrays that are sent of a message."""
        by_slot = self.places.by_slot(message)
        return [by_slot[slot] for slot in range(len(self.shapes))]


class Layout(NamedTuple):
    """All messages of an algorithm's rounds."""

    shapes: Shapes
    """Of the arrays that the server sends, by slot."""
    points: Places
    """Where full gradients are asked for."""
    prime: Places
    """The same in gradient-only rounds."""
    message: Places | None
    """What clients train from; None if they never train."""
    gradient: Parcel
    """A full gradient at one of the points, a `Vector`."""
    update: Parcel | None
    """The pair `(Reply.send, Reply.add)`; None if clients never train."""
    blank: Any
    """What a client that was never seen has kept, `Reply.keep`, as shapes."""


def layout_of(algorithm: Algorithm, model: Any) -> Layout:
    """The layout of an algorithm's messages, for a model or its shapes."""
    first = at_round(algorithm, 0)  # schedules change no shapes
    x = Vector(jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), a.dtype), model))
    found: list[Layout] = []

    def one_round(algorithm: Algorithm, server: Any) -> None:
        sent, replied = _Numbering(), _Numbering()
        points = algorithm.points(server)
        prime = algorithm.prime_points(server) if algorithm.gradient_rounds else ()
        whole = sent.places(points), sent.places(prime)
        message = update = None
        kept = algorithm.remember(server.x)
        if algorithm.local_steps:
            broadcast = message_of(algorithm, server, tuple(map(zeros, points)))
            message = sent.places(broadcast)
            reply = algorithm.local(broadcast, AbstractClient(kept))
            places = replied.places((reply.send, reply.add))
            update = Parcel(replied.shapes, places)
        own = _Numbering()
        gradient_places = own.places(server.x)
        found.append(Layout(sent.shapes, *whole, message, Parcel(own.shapes, gradient_places), update, _shapes(kept)))

    jax.eval_shape(one_round, first, jax.eval_shape(first.start, x))
    return found[0]


class _Numbering:
    """Numbers arrays by their identity. They are held, so that no other array can take their identity."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._arrays: list[Any] = []

    def places(self, tree: Any) -> Places:
        leaves, structure = jax.tree.flatten(tree)
        for leaf in leaves:
            if id(leaf) not in self._slots:
                self._slots[id(leaf)] = len(self._arrays)
                self._arrays.append(leaf)
        return Places(structure, tuple(self._slots[id(leaf)] for leaf in leaves))

    @property
    def shapes(self) -> Shapes:
        return tuple(_shapes(self._arrays))


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), tree)
