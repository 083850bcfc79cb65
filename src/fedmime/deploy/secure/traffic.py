"""What a round of a secure run costs on the wire."""

from __future__ import annotations

import math

from fedmime.aggregation.communication import Cost, Traffic
from fedmime.algorithms.algorithm import Algorithm
from fedmime.deploy.layout import Layout, Places
from fedmime.deploy.secure import fixed_point
from fedmime.deploy.secure.contents import MaskedScalars
from fedmime.deploy.secure.options import SecureSum
from fedmime.deploy.secure.primitives import PUBLIC_BYTES, SEALED_BYTES, SEED_SHARE_BYTES


def secure_cost(cost: Cost, algorithm: Algorithm, layout: Layout, options: SecureSum, clients: int) -> Cost:
    """What a client receives and sends in a round in which nobody leaves.

    Args:
        cost: the same without masks.
        algorithm: what is run.
        layout: of its messages.
        options: of the masks.
        clients: how many are asked in a round.
    """
    group = clients // 2 if algorithm.split else clients
    gradient = sum(math.prod(shape.shape) for shape in layout.gradient.shapes)
    update = 0
    if layout.update is not None:
        update = sum(math.prod(layout.update.shapes[slot].shape) for slot in layout.update.places.slots)

    def points(places: Places) -> int:
        return gradient * (len(places.slots) // len(layout.gradient.shapes))

    def masked(plain: Traffic, *exchanges: int) -> Traffic:
        """Traffic of exchanges with so many entries each."""
        up = sum(fixed_point.Layout(n, len(MaskedScalars._fields), options.width(group)).nbytes for n in exchanges)
        keys, letters = 2 * PUBLIC_BYTES, (group - 1) * SEALED_BYTES
        beside = len(exchanges) * (keys + letters + group * SEED_SHARE_BYTES)
        return Traffic(plain.down + len(exchanges) * (group * keys + letters), up + beside)

    asked = points(layout.points)
    prime = None if cost.prime is None else masked(cost.prime, points(layout.prime))
    if cost.gradient is not None:
        return Cost(cost.model_bytes, masked(cost.update, update), masked(cost.gradient, asked), prime)
    exchanges = (asked, update) if algorithm.waits and algorithm.local_steps else (asked + update,)
    return Cost(cost.model_bytes, masked(cost.update, *exchanges), None, prime)
