"""A client inside the compiled round: its gradients and its loop over mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from fedmime.algorithms.algorithm import Batch, Carry
from fedmime.vector import Vector, dot


class LossProblem(Protocol):
    """What the engine needs of a problem."""

    @property
    def loss(self) -> Callable[[Any, Any, jax.Array], jax.Array]: ...


class Examples(NamedTuple):
    """A mini-batch as the engine knows it."""

    fields: Mapping[str, Any]
    weights: jax.Array  # [batch] 1/count for real examples, 0 for padding
    real: jax.Array  # [batch]
    key: jax.Array


class Watch(NamedTuple):
    """What a client's loop saw, summed over its steps."""

    loss: jax.Array
    drift: jax.Array  # of ‖y - x‖² before each step

    @classmethod
    def zero(cls, dtype: Any) -> Watch:
        """Nothing seen."""
        return cls(jnp.zeros((), dtype), jnp.zeros((), dtype))


def weighted_loss(problem: LossProblem, params: Any, examples: Examples) -> jax.Array:
    """The weighted sum of the examples' losses. A padded row cannot leak: its loss is replaced, not multiplied."""
    losses = problem.loss(params, examples.fields, examples.key)
    return jnp.sum(jnp.where(examples.real, losses, 0) * examples.weights.astype(losses.dtype))


class LaneClient:
    """One client of a device's lane. Lives only while a round is traced."""

    def __init__(
        self,
        problem: LossProblem,
        examples: Callable[[jax.Array], Examples],
        anchor: Vector | None,
        kept: Any,
        steps: jax.Array,
        pick: jax.Array,
        watch_drift: bool,
    ) -> None:
        self.kept, self.steps, self.pick = kept, steps, pick
        self._problem, self._examples, self._anchor = problem, examples, anchor
        self._watch_drift = watch_drift
        self._loss: jax.Array | None = None  # of the gradient taken last, for the round's report
        self.watch: Watch | None = None

    def grad(self, y: Vector, batch: Batch, control: float | jax.Array = 0.0) -> Vector:
        """See `fedmime.algorithms.algorithm.Client.grad`."""
        self._loss, at_y = jax.value_and_grad(weighted_loss, argnums=1)(self._problem, y.tree, batch.handle)
        if isinstance(control, float) and control == 0.0:
            return Vector(at_y)
        assert self._anchor is not None, "an algorithm that uses a control variate names its anchor"
        at_anchor = jax.grad(weighted_loss, argnums=1)(self._problem, self._anchor.tree, batch.handle)
        return Vector(at_y) - control * Vector(at_anchor)

    def descend(self, step: Callable[[Carry, Batch], Carry], start: Carry) -> Carry:
        """See `fedmime.algorithms.algorithm.Client.descend`."""
        x = _point(start)

        def body(k: jax.Array, loop: tuple[Carry, Watch]) -> tuple[Carry, Watch]:
            carry, seen = loop
            drift = seen.drift
            if self._watch_drift:
                moved = _point(carry) - x
                drift = drift + dot(moved, moved)
            carry = step(carry, Batch(k, self._examples(k)))
            loss = seen.loss if self._loss is None else seen.loss + self._loss
            return carry, Watch(loss, drift)

        dtype = jax.tree.leaves(x)[0].dtype
        carry, self.watch = lax.fori_loop(0, self.steps, body, (start, Watch.zero(dtype)))
        return carry


def _point(carry: Any) -> Vector:
    return carry if isinstance(carry, Vector) else carry[0]
