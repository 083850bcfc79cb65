"""A client inside the compiled training program: its gradients, and its loop over mini-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedmime.algorithms.algorithm import Batch, Carry
from fedmime.engine.backends.local.gradients import (
    Examples,
    Kept,
    Lane,
    loss_and_difference,
    loss_and_grad,
    loss_at_anchor,
)
from fedmime.errors import ConfigError
from fedmime.kernels.sums import formed, lazy
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
        place: jax.Array,
        kept: Any,
        pick: jax.Array | None,
        *,
        at_anchor: Kept | None,
        starts_at_anchor: bool,
        watch_drift: bool,
        dtype: Any,
    ) -> None:
        self.kept, self.steps, self._pick = kept, lane.tables.clients.steps[place], pick
        self._lane, self._place, self._dtype = lane, place, dtype
        self._at_anchor, self._starts_at_anchor, self._watch_drift = at_anchor, starts_at_anchor, watch_drift
        self._loss = jnp.zeros((), dtype)  # of the gradient taken last, for the round's report
        self._first = False  # whether the step that is being traced begins at the anchor
        self.watch = Watch(jnp.zeros((), dtype), jnp.zeros((), dtype))

    @property
    def pick(self) -> jax.Array:
        """See `fedmime.algorithms.algorithm.Client.pick`."""
        if self._pick is None:
            raise ConfigError("an algorithm that looks at Client.pick must say so: draws = True, got draws = False")
        return self._pick

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """See `fedmime.algorithms.algorithm.Client.grad`."""
        self._loss, gradient = loss_and_grad(self._lane.problem, y, batch.handle)
        return gradient

    def grad_difference(self, y: Vector, x: Vector, batch: Batch) -> Vector:
        """See `fedmime.algorithms.algorithm.Client.grad_difference`."""
        if self._first and self._at_anchor is not None:
            self._loss = loss_at_anchor(batch.handle, self._at_anchor)
            return zeros(y)
        self._loss, difference = loss_and_difference(self._lane.problem, y, x, batch.handle, self._at_anchor)
        return difference

    def descend(self, step: Callable[[Carry, Batch], Carry], start: Carry) -> Carry:
        """See `fedmime.algorithms.algorithm.Client.descend`.

        If the gradients at the anchor are known and y starts there, the first step needs no gradient. It is traced on
        its own, before the loop over the others.
        """
        x = _point(start)

        def body(k: jax.Array, carry: tuple[Any, Watch]) -> tuple[Any, Watch]:
            state, seen = carry
            drift = seen.drift
            if self._watch_drift:
                drift = drift + squared_distance(_point(state), x)
            examples: Examples = self._lane.batch(self._place, k, self._dtype)
            state = formed(step(lazy(state), Batch(k, examples)))
            return state, Watch(seen.loss + self._loss.astype(self._dtype), drift)

        carry, first = (start, self.watch), 0
        if self._at_anchor is not None and self._starts_at_anchor:
            self._first = True
            carry, first = body(jnp.zeros((), jnp.int32), carry), 1
            self._first = False
        carry, self.watch = lax.fori_loop(first, self.steps, body, carry)
        return carry


def _point(carry: Any) -> Vector:
    """The local model y of a loop's carry: the carry itself, or the first entry of a tuple."""
    return carry if isinstance(carry, Vector) else carry[0]
