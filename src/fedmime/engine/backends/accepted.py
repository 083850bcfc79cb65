"""The messages of single clients on their way into a mean."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedmime.engine.backends.backend import Kept, Totals


class Accepted:
    """The messages of one kind that the gate has accepted, one after another: their weighted sum, or for a combiner
    that is not linear all of them.

    Args:
        linear: whether sums suffice.
        rows: fill up kept messages to so many with zeros of weight zero, so that the server's program need not be
            compiled again when another number of clients replies.
    """

    def __init__(self, linear: bool, rows: int = 0) -> None:
        self._linear, self._rows, self.weight = linear, rows, 0.0
        self._messages: list[Any] = []
        self._weights: list[float] = []
        self._sum: Any = None
        self._beside: Any = None  # sums of what is not weighted

    def add(self, w: float, message: Any, *beside: Any) -> None:
        """Add a client's message with its weight; `beside` is added without it."""
        self.weight += w
        self._beside = beside if self._beside is None else jax.tree.map(jnp.add, self._beside, beside)
        if self._linear:
            term = jax.tree.map(lambda leaf: jnp.asarray(w, leaf.dtype) * leaf, message)
            self._sum = term if self._sum is None else jax.tree.map(jnp.add, self._sum, term)
        else:
            self._messages.append(message)
            self._weights.append(w)

    @property
    def collected(self) -> Any:
        """Σ w·message, or `Kept` messages."""
        if self._linear:
            return self._sum
        missing = max(self._rows - len(self._messages), 0)
        padding = [jax.tree.map(jnp.zeros_like, self._messages[0])] * missing
        messages = jax.tree.map(lambda *leaves: jnp.stack(leaves), *self._messages, *padding)
        return Kept(messages, jnp.asarray(self._weights + [0.0] * missing))

    @property
    def totals(self) -> Totals | None:
        """What was collected of updates, with sums of what clients add and of their figures; None if there was none."""
        if self._beside is None:
            return None
        add, figures = self._beside
        if self._linear:
            return Totals(self._sum, add, figures)
        return Totals((), add, figures, self.collected)
