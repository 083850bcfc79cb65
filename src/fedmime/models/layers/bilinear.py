"""Forward derivatives of functions that are linear in each of two arrays.

The operations of dense layers and convolutions may run as C kernels, which JAX cannot differentiate. For a bilinear
function f the derivative is known without looking inside: f(da, b) + f(a, db). With it, forward-mode derivatives of
gradients (Hessian-vector products) work for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

Pair = tuple[jax.Array, jax.Array]  # (a, b) or their tangents


def bilinear(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Decorate a bilinear `function(a, b, *fixed)` with its forward derivative f(da, b) + f(a, db).

    Args:
        function: linear in the array a and in the array b. Further arguments, such as the padding, are constants and
            must be hashable.
    """

    @functools.cache
    def at(*fixed: Any) -> Callable[[jax.Array, jax.Array], jax.Array]:
        """The differentiable function for fixed further arguments, cached so that JAX traces it once."""

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
