"""Encoders: what a client does, step by step, to a message before it is sent, and how the server undoes it.

A message is seen as the list of its floating-point arrays. Encoders are chained: each encodes the arrays that the one
before it left, and decoding goes through them in reverse order.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax

UPDATE, GRADIENT, BROADCAST = KINDS = ("update", "gradient", "broadcast")
SERVER = -1  # the sender of a broadcast

Shapes = Sequence[jax.ShapeDtypeStruct]


class Sender(NamedTuple):
    """Who sends what. Both sides know it, so random choices that follow from it need not be sent."""

    kind: str
    """`"update"`, `"gradient"` or `"broadcast"`; fixed when a program is traced."""
    client: Any
    """The client's position in the population, or `SERVER`; an integer or a traced scalar."""
    key: jax.Array
    """The random key of this message: a function of seed, round, client and kind."""


class Encoded(NamedTuple):
    """A message after one encoder."""

    values: list[Any]
    """What the next encoder encodes in turn: floating-point arrays, or `fedmime.aggregation.wire.Integers`, which no
    encoder can encode further."""
    side: Any = ()
    """A pytree of arrays that goes along unchanged, such as the scales of a quantizer."""


class Encoder(abc.ABC):
    """One step of an encoding. Subclasses are recipes: their numbers are leaves, what changes shapes is static."""

    unbiased: ClassVar[bool] = True
    """Whether the expectation of the decoded message, over the sender's key, is the message."""
    compresses: ClassVar[bool] = True
    """Whether it saves bytes. Error feedback keeps what such encoders lose, and goes with no others."""
    amplifies: ClassVar[bool] = False
    """Whether what it loses can be longer than the message, so that error feedback would grow without end."""
    last: ClassVar[bool] = False
    """Whether its values are integers, which no encoder after it can encode."""
    downward: ClassVar[bool] = False
    """Whether it may encode broadcasts: it keeps every entry of the server's arrays."""

    @property
    def changes_nothing(self) -> bool:
        """Whether it leaves every message as it is, so that a chain can do without it."""
        return False

    @abc.abstractmethod
    def encode(self, values: list[jax.Array], sender: Sender) -> Encoded:
        """Encode arrays; pure, with shapes that depend on the shapes of the arrays alone."""

    @abc.abstractmethod
    def decode(self, encoded: Encoded, like: Shapes, sender: Sender) -> list[jax.Array]:
        """The arrays that the server makes of it, with the given shapes and types."""


def encode_chain(encoders: Sequence[Encoder], values: list[jax.Array], sender: Sender) -> Encoded:
    """Encode by several encoders in order; the sides of all of them go along."""
    sides = []
    for number, encoder in enumerate(encoders):
        values, side = encoder.encode(values, own(sender, number))
        sides.append(side)
    return Encoded(values, tuple(sides))


def decode_chain(encoders: Sequence[Encoder], encoded: Encoded, like: Shapes, sender: Sender) -> list[jax.Array]:
    """Undo `encode_chain` for arrays like the given ones."""
    shapes = [like]  # before each encoder
    for number, encoder in enumerate(encoders[:-1]):
        step = lambda values, encoder=encoder, number=number: encoder.encode(values, own(sender, number)).values
        shapes.append(jax.eval_shape(step, list(shapes[-1])))
    values = encoded.values
    for number in reversed(range(len(encoders))):
        values = encoders[number].decode(Encoded(values, encoded.side[number]), shapes[number], own(sender, number))
    return values


def own(sender: Sender, number: int) -> Sender:
    """The sender with the random key of the encoder at position `number` of a chain."""
    return sender._replace(key=jax.random.fold_in(sender.key, number))
