"""A client inside the compiled training program: its gradients, and its loop over mini-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedmime.algorithms.algorithm import Batch, Carry
from fedmime.engine.backends.backend import UNDRAWN
from fedmime.engine.backends.local.gradients import (
    AtAnchor,
    Examples,
    Lane,
    loss_and_difference,
    loss_and_grad,
    loss_at_anchor,
)
from fedmime.engine.backends.local.layout import Trainee
from fedmime.errors import ConfigError
from fedmime.kernels.lazy import formed, lazy
from fedmime.vector import Vector, squared_distance, zeros


class Watch(NamedTuple):
    """What a client's loop saw, summed over its local steps."""

    loss: jax.Array
    drift: jax.Array
    """Σ ‖y − x‖² before each step; zero where it is not measured."""


class LaneClient:
    """One client of a lane, as `Algorithm.local` sees it. It exists only while the training program is traced."""

    def __init__(
        self,
        lane: Lane,
        trainee: Trainee,
        kept: Any,
        pick: jax.Array | None,
        *,
        at_anchor: AtAnchor | None,
        starts_at_anchor: bool,
        watch_drift: bool,
        dtype: Any,
    ) -> None:
        self.kept, self.steps, self._pick = kept, trainee.steps, pick
        self._lane, self._trainee, self._dtype = lane, trainee, dtype
        self._at_anchor, self._starts_at_anchor, self._watch_drift = at_anchor, starts_at_anchor, watch_drift
        self._loss = jnp.zeros((), dtype)  # of the gradient taken last, for the round's report
        self._at_start: Vector | None = None  # y of the first step, while it is traced, if that is the anchor
        self.watch = Watch(jnp.zeros((), dtype), jnp.zeros((), dtype))

    @property
    def pick(self) -> jax.Array:
        """See `fedmime.algorithms.algorithm.Client.pick`."""
        if self._pick is None:
            raise ConfigError(UNDRAWN)
        return self._pick

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """See `fedmime.algorithms.algorithm.Client.grad`."""
        self._loss, gradient = loss_and_grad(self._lane, y, batch.handle)
        return gradient

    def grad_difference(self, y: Vector, x: Vector, batch: Batch) -> Vector:
        """See `fedmime.algorithms.algorithm.Client.grad_difference`."""
        if y is self._at_start and self._at_anchor is not None:
            self._loss = loss_at_anchor(batch.handle, self._at_anchor)
            return zeros(y)
        self._loss, difference = loss_and_difference(self._lane, y, x, batch.handle, self._at_anchor)
        return difference

    def descend(self, step: Callable[[Carry, Batch], Carry], start: Carry) -> Carry:
        """See `fedmime.algorithms.algorithm.Client.descend`.

        If the gradients at the anchor are known and y starts there, the first step needs no gradient. It is traced on
        its own, before the loop over the others.
        """
        x = _point(start)

        def body(k: jax.Array, carry: tuple[Any, Watch], first: bool = False) -> tuple[Any, Watch]:
            state, seen = carry
            drift = seen.drift
            if self._watch_drift:
                drift = drift + squared_distance(_point(state), x)
            examples: Examples = self._lane.batch(self._trainee, k, self._dtype)
            state = lazy(state)
            self._at_start = _point(state) if first else None
            state = formed(step(state, Batch(k, examples)))
            return state, Watch(seen.loss + self._loss.astype(self._dtype), drift)

        carry, first = (start, self.watch), 0
        if self._at_anchor is not None and self._starts_at_anchor:
            carry, first = body(jnp.zeros((), jnp.int32), carry, first=True), 1
        carry, self.watch = lax.fori_loop(first, self.steps, body, carry)
        return carry


def _point(carry: Any) -> Vector:
    """The local model y of a loop's carry: the carry itself, or the first entry of a tuple."""
    return carry if isinstance(carry, Vector) else carry[0]
