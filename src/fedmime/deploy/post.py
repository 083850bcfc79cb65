"""The post between clients and the server: a message's two halves as compiled programs.

`send` is what a client does to an update or a full gradient, `receive` what the server makes of it. Between them lie
bytes, packed by `fedmime.aggregation.wire`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax

from fedmime.aggregation.aggregator import Aggregator, sender_of
from fedmime.deploy.layout import Parcel
from fedmime.deploy.messages import Answer
from fedmime.vector import finite


class Sent(NamedTuple):
    """What a client makes of a message."""

    wire: Any
    """What it sends."""
    residual: Any
    """What it keeps of what was lost; `()` without error feedback."""
    sound: Any
    """Whether that is finite."""
    unclipped: Any
    """Whether no encoder has clipped the message."""


class Outcome(NamedTuple):
    """What a client has computed for one request."""

    reply: Answer
    gradients: list[Sent]
    """One for every point, encoded."""
    update: Sent | None
    """The encoded update; None if the client was not to train."""


@functools.partial(jax.jit, static_argnames="kind")
def send(
    aggregator: Aggregator, arrays: list[Any], residual: Any, key: jax.Array, client: Any, number: Any, kind: str
) -> Sent:
    """Encode a client's message.

    Args:
        aggregator: the round's.
        arrays: of the message, each once.
        residual: what the client's earlier updates lost, one array for each; `()` without error feedback.
        key: the round's.
        client: position in the population.
        number: which message of its kind it is.
        kind: `"update"` or `"gradient"`.
    """
    sender = sender_of(kind, key, client, number)
    wire, left = aggregator.send(arrays, residual, sender)
    return Sent(wire, left, finite(left), aggregator.unclipped(arrays, sender))


@functools.partial(jax.jit, static_argnames=("kind", "parcel"))
def receive(
    aggregator: Aggregator,
    wire: Any,
    key: jax.Array,
    client: Any,
    number: Any,
    bound: Any,
    kind: str,
    parcel: Parcel,
) -> tuple[Any, jax.Array]:
    """Decode what a client sent and judge it: the message, and the `Reason` to refuse it as a number.

    The arguments are those of `send`, `bound` is the largest norm that passes, `parcel` says what was to come.
    """
    received = aggregator.receive(wire, list(parcel.shapes), sender_of(kind, key, client, number))
    message = parcel.places.filled(received)
    return message, aggregator.reason_of(message, kind, bound)


def wire_of(aggregator: Aggregator, parcel: Parcel, kind: str) -> Any:
    """The structure of what is sent of a message, as shapes."""
    sender = sender_of(kind, jax.random.key(0), 0)
    return jax.eval_shape(lambda arrays: aggregator.encode(arrays, sender), list(parcel.shapes))
