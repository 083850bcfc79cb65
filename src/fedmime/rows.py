"""Rows of a table that are not taken before they are needed."""

from __future__ import annotations

import dataclasses

import jax

from fedmime import native


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a table [n, ...] at int32 `places` [m]."""

    table: jax.Array
    places: jax.Array

    def taken(self) -> jax.Array:
        """They themselves: [m, ...]."""
        return native.take(self.table, self.places)

    def weighted(self, weights: jax.Array) -> jax.Array:
        """Their sum, each times its weight: [...]."""
        return native.weighted_rows(self.table, self.places, weights.astype(self.table.dtype))
