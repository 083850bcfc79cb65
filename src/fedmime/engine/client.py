"""A client inside the compiled round: its gradients and its loop over mini-batches."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax

from fedmime.algorithms.algorithm import Batch, Carry
from fedmime.dual import NotDual
from fedmime.engine import dual
from fedmime.engine.gradients import Batches, Examples, Source, loop
from fedmime.errors import ConfigError
from fedmime.vector import Vector, squared_distance


class Watch(NamedTuple):
    """What a client's loop saw, summed over its steps."""

    loss: jax.Array
    drift: jax.Array  # of ‖y - x‖² before each step

    @classmethod
    def zero(cls, dtype: Any) -> Watch:
        """Nothing seen."""
        return cls(jnp.zeros((), dtype), jnp.zeros((), dtype))


class LaneClient:
    """One client of a device's lane. Lives only while a round is traced."""

    def __init__(
        self,
        source: Source,
        batches: Batches,
        kept: Any,
        steps: jax.Array,
        pick: jax.Array | None,
        watch_drift: bool,
        masked: int | None,
    ) -> None:
        self.kept, self.steps, self._pick = kept, steps, pick
        self._source, self._batches, self._watch_drift, self._masked = source, batches, watch_drift, masked
        self._loss: jax.Array | None = None  # of the gradient taken last, for the round's report
        self.watch: Watch | None = None

    @property
    def pick(self) -> jax.Array:
        """See `fedmime.algorithms.algorithm.Client.pick`."""
        if self._pick is None:
            raise ConfigError("an algorithm that looks at Client.pick must say so: draws = True, got draws = False")
        return self._pick

    def grad(self, y: Vector, batch: Batch, control: float | jax.Array = 0.0) -> Vector:
        """See `fedmime.algorithms.algorithm.Client.grad`."""
        self._loss, gradient = self._source(y, batch.handle, control)
        return gradient

    def descend(self, step: Callable[[Carry, Batch], Carry], start: Carry) -> Carry:
        """See `fedmime.algorithms.algorithm.Client.descend`."""
        x = _point(start)

        def work(k: jax.Array, examples: Examples, loop: tuple[Any, Watch]) -> tuple[Any, Watch]:
            carry, seen = loop
            drift = seen.drift
            if self._watch_drift:
                drift = drift + squared_distance(_point(carry), x)
            carry = step(carry, Batch(k, examples))
            loss = seen.loss if self._loss is None else seen.loss + self._loss
            return carry, Watch(loss, drift)

        def body(k: jax.Array, loop: tuple[Any, Watch]) -> tuple[Any, Watch]:
            return self._batches.each(k, functools.partial(work, k), loop)

        begun: tuple[Any, Watch] = (start, Watch.zero(jax.tree.leaves(x)[0].dtype))
        first, short = 0, None
        if self._source.known is x:  # so that nothing has to be computed for the first step
            nought = jnp.zeros((), jnp.int32)
            begun, first = work(nought, self._batches.examples(nought), begun), 1
            if start is x and not self._watch_drift:
                short = dual.begin(self._source, x, begun[0], self._batches, self.steps)

        def rest() -> tuple[Any, Watch]:
            limit = self._masked and self._masked - first
            return loop(self.steps - first, limit, lambda k, carry: body(k + first, carry), begun)

        if short is not None:
            with contextlib.suppress(NotDual):
                moved, self.watch = lax.cond(
                    short.pays, lambda: short.descend(body, begun[1]), lambda: _moved(x, *rest())
                )
                return cast(Carry, Vector.pending(x.tree) + Vector(moved))
        carry, self.watch = rest()
        return _later(carry)


def _later(carry: Any) -> Any:
    """The same, with a y that is not used yet: what is to be made of it, y - x, is formed in one go."""
    y = Vector.pending(_point(carry).tree)
    if isinstance(carry, Vector):
        return y
    return carry._replace(**{carry._fields[0]: y}) if hasattr(carry, "_fields") else type(carry)([y, *carry[1:]])


def _moved(x: Vector, y: Vector, seen: Watch) -> tuple[Any, Watch]:
    """How far y is from x, as a tree."""
    return (Vector.pending(y.tree) - x).tree, seen


def _point(carry: Any) -> Vector:
    return carry if isinstance(carry, Vector) else carry[0]
