"""What an exchange of a round puts into a masked sum, and how the server gets it out again.

Both sides derive the order from the layout of the algorithm's messages: the full gradients, then the arrays of the
update that are averaged, then those that are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.aggregation.aggregator import Aggregator, Wire, sender_of
from fedmime.aggregation.encoder import GRADIENT, UPDATE
from fedmime.deploy.layout import Layout, Parcel
from fedmime.deploy.post import Outcome
from fedmime.deploy.secure.masking import Contribution
from fedmime.deploy.secure.parts import Part
from fedmime.errors import ConfigError
from fedmime.vector import Vector


class MaskedScalars(NamedTuple):
    """Numbers of a client that are summed beside its messages."""

    loss: float
    drift: float
    gradients_unclipped: float
    """1 if no gradient was clipped."""
    update_unclipped: float


class Messages(NamedTuple):
    """The sums of an exchange, as the engine has them."""

    gradients: tuple[Vector, ...]
    update: Any
    """The pair `(Reply.send, Reply.add)`, or None where nobody trained."""


def check_layout(layout: Layout) -> None:
    """Refuse messages that hold other arrays than those of floating-point numbers.

    Raises:
        ConfigError: an array cannot be clipped.
    """
    parcels = [layout.gradient, *([] if layout.update is None else [layout.update])]
    for shape in [shape for parcel in parcels for shape in parcel.shapes]:
        if not jnp.issubdtype(shape.dtype, jnp.floating):
            raise ConfigError(f"secure: messages must hold floating-point numbers, got an array of {shape.dtype}")


def contribution_of(
    outcome: Outcome, layout: Layout, aggregator: Aggregator, key: jax.Array, client: int
) -> Contribution:
    """The client's half.

    Args:
        outcome: what it has computed.
        layout: of the algorithm's messages.
        aggregator: the round's, which clips.
        key: the round's.
        client: its position in the population.
    """
    reply, gradients, update = outcome
    send, add = ([], []) if update is None else _update(layout, _arrays(update.wire))
    senders = [sender_of(GRADIENT, key, client, number) for number in range(len(gradients))]
    senders += [] if update is None else [sender_of(UPDATE, key, client)]
    return Contribution(
        [_arrays(gradient.wire) for gradient in gradients],
        send,
        add,
        (float(aggregator.clip_norm(UPDATE)), float(aggregator.clip_norm(GRADIENT))),
        MaskedScalars(reply.loss, reply.drift, reply.gradients_unclipped, reply.update_unclipped),
        [np.random.default_rng(np.asarray(jax.random.key_data(sender.key))) for sender in senders],
    )


def parts_of(
    layout: Layout, aggregator: Aggregator, gradients: int, train: bool, largest: tuple[float, float]
) -> list[Part]:
    """The server's half, before anything has arrived.

    Args:
        layout: of the algorithm's messages.
        aggregator: the round's, which clips.
        gradients: how many full gradients are asked for.
        train: whether an update is.
        largest: the largest weights of an update and of gradients in the group.
    """
    update_weight, gradient_weight = largest
    shapes = layout.gradient.shapes
    parts = [Part(shapes, [gradient_weight] * len(shapes), float(aggregator.clip_norm(GRADIENT)))] * gradients
    if train:
        assert layout.update is not None
        send, add = _update(layout, layout.update.shapes)
        weights = [update_weight] * len(send) + [1.0] * len(add)
        parts.append(Part([*send, *add], weights, float(aggregator.clip_norm(UPDATE))))
    return parts


def messages_of(sums: Sequence[Sequence[np.ndarray]], layout: Layout, gradients: int) -> Messages:
    """The server's half, after the sums of all parts are there."""
    vectors = tuple(layout.gradient.places.filled(each) for each in sums[:gradients])
    if len(sums) == gradients:
        return Messages(vectors, None)
    assert layout.update is not None
    return Messages(vectors, jax.tree.unflatten(layout.update.places.tree, sums[-1]))


def _arrays(wire: Wire) -> list[np.ndarray]:
    """The clipped arrays of a message."""
    assert not wire.rest
    return jax.device_get(wire.encoded.values)


def _update(layout: Layout, arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The arrays of an update that are averaged and those that are summed, given each once."""
    parcel: Parcel | None = layout.update
    assert parcel is not None
    send, add = parcel.places.filled(arrays)
    return jax.tree.leaves(send), jax.tree.leaves(add)
