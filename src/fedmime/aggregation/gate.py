"""The gate that every client's message passes before it is added to anything.

A message that fails is left out of its mean, with a reason, and never costs the round. Simulation judges messages in
compiled programs (`judge`). A deployed server, which this version does not have yet, first compares what it received
with what it asked for (`examine`) and then judges by the same rule.
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.vector import Vector, dot, finite


class Reason(enum.IntEnum):
    """Why a client is left out of a round. Numbers and labels are recorded with runs and do not change."""

    ACCEPTED = 0
    DATA = 1
    """Its examples could not be used, so it was not asked."""
    STRUCTURE = 2
    """Not a reply at all: arrays are missing or foreign, or something else stands in their place."""
    SHAPE = 3
    DTYPE = 4
    NOT_FINITE = 5
    NORM = 6
    """The message is longer than the bound."""
    WEIGHT = 7
    """The weight is not a number in (0, largest]."""
    ROUND = 8
    """The reply belongs to another round."""
    DUPLICATE = 9
    """The client has replied in this round before."""
    UNASKED = 10
    """The client does not belong to the cohort."""
    SIZE = 11
    """More bytes than such a message has. Transports find it before they decode; `examine` never does."""

    @property
    def label(self) -> str:
        """The lower-case name that histories and logs use."""
        return self.name.lower()


class Reply(NamedTuple):
    """What a deployed client sent, decoded but not yet trusted: the fields may hold anything."""

    round: int
    client: str | int
    """Who sent it: the identity that the transport has authenticated, never a name that the message claims. Otherwise
    one client could reply many times."""
    weight: float
    arrays: Mapping[str, np.ndarray]


class Expected(NamedTuple):
    """What a reply must be to count in the current round."""

    round: int
    shapes: Mapping[str, jax.ShapeDtypeStruct]
    """The shape and type of every array, by name, such as `fedmime.vector.by_place` gives them."""
    largest_norm: float
    largest_weight: float
    seen: frozenset[str | int] = frozenset()
    """Clients that have replied in this round."""
    asked: frozenset[str | int] | None = None
    """The cohort; None lets everybody reply."""


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


_judge = jax.jit(judge)


def examine(reply: Reply, expected: Expected) -> Reason:
    """Whether a received reply may be counted; the cheap checks come first.

    Nothing that a client can send makes it raise, and nothing is converted to fit: an array of another type, or one
    that would broadcast to the right shape, is refused.
    """
    return (
        _examine_sender(reply, expected)
        or _examine_arrays(reply.arrays, expected.shapes)
        or Reason(int(_judge(dict(reply.arrays), expected.largest_norm)))
    )


def _examine_sender(reply: Any, expected: Expected) -> Reason:
    """The checks that do not look at the arrays."""
    if not isinstance(reply, Reply) or not isinstance(reply.client, str | int) or isinstance(reply.client, bool):
        return Reason.STRUCTURE
    if type(reply.round) is not int or reply.round != expected.round:
        return Reason.ROUND
    if expected.asked is not None and reply.client not in expected.asked:
        return Reason.UNASKED
    if reply.client in expected.seen:
        return Reason.DUPLICATE
    return Reason.ACCEPTED if 0 < _number(reply.weight) <= expected.largest_weight else Reason.WEIGHT


def _examine_arrays(arrays: Any, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> Reason:
    """The checks that do not look at the entries of the arrays."""
    if not isinstance(arrays, Mapping) or arrays.keys() != shapes.keys():
        return Reason.STRUCTURE
    for name, like in shapes.items():
        array = arrays[name]
        if type(array) is not np.ndarray:  # a masked array would hide its entries
            return Reason.STRUCTURE
        if array.dtype != like.dtype:
            return Reason.DTYPE
        if array.shape != like.shape:
            return Reason.SHAPE
    return Reason.ACCEPTED


def _number(value: Any) -> float:
    """A real number of Python or NumPy; NaN for everything else, booleans among it."""
    if isinstance(value, np.generic):
        return float(value) if value.dtype.kind in "iuf" else np.nan
    return value if isinstance(value, int | float) and not isinstance(value, bool) else np.nan


def counts(reasons: Iterable[Any]) -> dict[str, int]:
    """How many replies met which fate, by label, in the order of the codes; those that did not occur are left out.

    >>> counts([0, 0, Reason.NORM])
    {'accepted': 2, 'norm': 1}
    """
    found = collections.Counter(Reason(int(reason)) for reason in reasons)
    return {reason.label: found[reason] for reason in Reason if found[reason]}
