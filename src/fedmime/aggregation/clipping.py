"""Clipping: a client scales its message down so that its Euclidean norm is at most a given number.

It bounds what a single client can contribute to a sum, which differential privacy (`privacy.py`) needs.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedmime.aggregation.encoder import GRADIENT, UPDATE, Encoded, Encoder, Sender, Shapes
from fedmime.hyperparameters import Number, Value, checked, number, recipe
from fedmime.validation import BOUND


@recipe
class Clip(Encoder):
    """Clipping as a recipe; `clip` explains its numbers. Broadcasts pass unchanged."""

    unbiased: ClassVar[bool] = False
    compresses: ClassVar[bool] = False

    norm: Value = number(BOUND)
    gradient: Value = number(BOUND)

    @property
    def changes_nothing(self) -> bool:
        return self.norm == self.gradient == math.inf

    def bound(self, kind: str) -> Any:
        """The largest norm of messages of a kind, or None where they are not clipped."""
        return {UPDATE: self.norm, GRADIENT: self.gradient}.get(kind)

    def encode(self, values: list[jax.Array], sender: Sender) -> Encoded:
        bound = self.bound(sender.kind)
        return Encoded(values if bound is None else scaled(values, bound))

    def decode(self, encoded: Encoded, like: Shapes, sender: Sender) -> list[jax.Array]:
        return encoded.values


def clip(norm: Number, gradient: Number | None = None) -> Clip:
    r"""Scale a message $v$, all its arrays together, by $\min(1, C / \lVert v \rVert)$.

    A message whose norm is at most $C$ keeps every bit.

    Args:
        norm: $C$ for updates, a positive number or a schedule of them; `math.inf` clips nothing.
        gradient: $C$ for full gradients; by default the same as for updates.
    """
    return checked(Clip(norm, norm if gradient is None else gradient))


def scaled(values: list[jax.Array], bound: Any) -> list[jax.Array]:
    """Arrays scaled by one factor so that their common norm is at most a bound; others than finite ones stay so."""
    norm = norm_of(values)
    bound = jnp.asarray(bound, norm.dtype)
    factor = jnp.where(norm > bound, bound / norm, 1)  # NaN is not larger: such a message is refused elsewhere
    return [value * factor.astype(value.dtype) for value in values]


def norm_of(values: list[jax.Array]) -> jax.Array:
    """The Euclidean norm of all arrays together, a scalar in single precision or better."""
    kind = jnp.result_type(jnp.float32, *values)
    squares = [jnp.sum(jnp.square(value.astype(kind))) for value in values]
    return jnp.sqrt(jnp.sum(jnp.stack(squares))) if squares else jnp.zeros((), kind)


def within(values: list[jax.Array], bound: Any) -> jax.Array:
    """Whether the norm of a message is at most a bound, so that clipping at this bound changes nothing."""
    norm = norm_of(values)
    return norm <= jnp.asarray(bound, norm.dtype)
