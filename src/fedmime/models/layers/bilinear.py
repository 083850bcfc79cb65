"""Functions that are linear in each of two arrays, whose forward derivative is thereby known."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

Pair = tuple[jax.Array, jax.Array]


def bilinear(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Let JAX differentiate `function(a, b, *fixed)` forwards, whatever runs inside: f(da, b) + f(a, db)."""

    @functools.cache
    def at(*fixed: Any) -> Callable[[jax.Array, jax.Array], jax.Array]:
        @jax.custom_jvp
        def apply(a: jax.Array, b: jax.Array) -> jax.Array:
            return function(a, b, *fixed)

        @apply.defjvp
        def derivative(point: Pair, tangent: Pair) -> Pair:
            (a, b), (da, db) = point, tangent
            return apply(a, b), apply(da, b) + apply(a, db)

        return apply

    @functools.wraps(function)
    def call(a: jax.Array, b: jax.Array, *fixed: Any) -> jax.Array:
        return at(*fixed)(a, b)

    return call
