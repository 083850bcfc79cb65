"""The gate that every update passes: a client's message before it is added to anything, and the server's own step.

Its limits are a `Gate`. A message that fails is left out of its mean, with a reason, and never costs the round.
Simulated and deployed rounds judge messages by the same rule (`judge`). A deployed server first compares what it
received with what it asked for, in `fedmime.deploy.replies`.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from fedmime.validation import POSITIVE, count, real
from fedmime.vector import Vector, dot, finite


@dataclasses.dataclass(frozen=True)
class Gate:
    """The limits of the gate: beyond which an update is refused, and a run is given up.

    Args:
        largest: an update of a client or of the server has exploded if it is longer than `largest * (1 + ‖x‖)`. An
            exploded client is left out of the means; if the server's update has exploded, the round is abandoned.
        patience: number of abandoned rounds in a row after which a run ends with `Diverged`.
    """

    largest: float = 1e3
    patience: int = 3

    def __post_init__(self) -> None:
        real("gate", "largest", self.largest, POSITIVE)
        count("gate", "patience", self.patience, least=1)


class Reason(enum.IntEnum):
    """Why a client is left out of a round. Numbers and labels are recorded with runs and do not change."""

    ACCEPTED = 0
    DATA = 1
    """Its examples cannot be used."""
    STRUCTURE = 2
    """Not a reply at all."""
    SHAPE = 3
    """Fewer bytes than such a message has: an array is missing, or has another shape or type."""
    NOT_FINITE = 5
    NORM = 6
    """The message is longer than the bound."""
    WEIGHT = 7
    """The client claims other numbers of examples or steps than it has."""
    ROUND = 8
    """The reply belongs to another request: it is late, or somebody has sent it once more."""
    DUPLICATE = 9
    """The client has replied to this request before."""
    UNASKED = 10
    """Who sent it was not asked."""
    SIZE = 11
    """More bytes than such a message has. It is not decoded."""
    FAILED = 12
    """The client was reached and could not do what it was asked for, or its process ended."""
    LATE = 13
    """No reply came before the deadline, or the client was not connected."""
    MASKS = 14
    """Its part in a masked sum was wrong, or it refused a stage because too few clients were left."""

    @property
    def label(self) -> str:
        """The lower-case name that histories and logs use."""
        return self.name.lower()


def judge(message: Any, bound: Any) -> jax.Array:
    """The `Reason` code of a message, as an int32 scalar: all entries finite, and its Euclidean norm at most `bound`.

    A norm whose square overflows counts as too long whatever the bound, even an infinite one: the server will square
    these numbers, too. So float32 entries of 1e30 are refused as `NORM`, and only what is infinite or NaN itself as
    `NOT_FINITE`. Messages of half precision are measured in float32.

    Args:
        message: a pytree of arrays.
        bound: the largest norm, a number or a traced scalar.
    """
    wide = Vector(jax.tree.map(_at_least_single, message))
    square = dot(wide, wide)  # looked at itself, because compilers may turn the root of one square into |x|
    short = jnp.isfinite(square) & (jnp.sqrt(square) <= jnp.asarray(bound).astype(square.dtype))
    reason = jnp.where(short, Reason.ACCEPTED, Reason.NORM)
    return jnp.where(finite(message), reason, Reason.NOT_FINITE).astype(jnp.int32)


def _at_least_single(leaf: jax.Array) -> jax.Array:
    wide = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize >= 4
    return leaf if wide else leaf.astype(jnp.float32)


def counts(reasons: Iterable[Any]) -> dict[str, int]:
    """The number of replies for each reason that occurred, by label, in the order of the codes.

    >>> counts([0, 0, Reason.NORM])
    {'accepted': 2, 'norm': 1}
    """
    found = collections.Counter(Reason(int(reason)) for reason in reasons)
    return {reason.label: found[reason] for reason in Reason if found[reason]}
