"""Forward derivatives of functions that are linear in each of two arrays.

The operations of dense layers and convolutions may run as C kernels, which JAX cannot differentiate. For a bilinear
function f the derivative is known without looking inside: f(da, b) + f(a, db). With it, forward-mode derivatives of
gradients (Hessian-vector products) work for all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax


def bilinear(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Decorate a bilinear `function(a, b, *fixed)` with its forward derivative f(da, b) + f(a, db).

    Args:
        function: linear in the array a and in the array b. Further arguments, such as the padding, are constants and
            must be hashable.
    """
    fixed = range(2, len(inspect.signature(function).parameters))
    apply = jax.custom_jvp(function, nondiff_argnums=tuple(fixed))

    @apply.defjvp
    def derivative(*arguments: Any) -> tuple[jax.Array, jax.Array]:
        *fixed, (a, b), (da, db) = arguments
        return apply(a, b, *fixed), apply(da, b, *fixed) + apply(a, db, *fixed)

    return apply
