"""Sums of arrays and an outer product that are computed in one pass over memory.

The gradient of a dense layer's weights is an outer product dᵀa of few rows, and a local step only adds it to other
arrays of the same shape: y − η (c + dᵀa). A `Sum` holds the terms of such an expression until its value is needed; a
kernel then reads every term once and writes the result in the place of the first, so the gradient itself is never
stored. Outside the compiled loops `Sum` does not appear: `formed` turns it into an array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedmime.kernels import ops

Term = tuple[Any, jax.Array]  # a scalar and the array that it multiplies


class Sum:
    """Σ sᵢ·tᵢ + dᵀa, entry by entry.

    Args:
        terms: scalars sᵢ and arrays tᵢ [out, in].
        outer: d [n, out] and a [n, in]; None if the sum has no outer product.
        after: arrays that were computed from the first term and must be so before it is overwritten. Naming them
            spares XLA a copy of that term.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        outer: tuple[jax.Array, jax.Array] | None = None,
        after: tuple[jax.Array, ...] = (),
    ) -> None:
        self._terms, self._outer, self._after = list(terms), outer, after
        self.shape = terms[0][1].shape if outer is None else (outer[0].shape[1], outer[1].shape[1])
        self.dtype = terms[0][1].dtype if outer is None else outer[0].dtype
        self.ndim = len(self.shape)

    def formed(self) -> jax.Array:
        """The value."""
        if self._outer is None:
            return ops.weighted_sum(self._terms)
        return ops.add_outer(*self._outer, self._terms, self._after)

    __jax_array__ = formed

    def __getattr__(self, name: str) -> Any:
        """Anything else that an array offers, at the price of forming it."""
        return getattr(self.formed(), name)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, Sum):
            if jnp.shape(other) != self.shape:
                return self.formed() + other
            other = Sum([(1.0, other)])
        if self._outer is not None and other._outer is not None:  # one product over the rows of both
            pairs = zip(self._outer, other._outer, strict=True)
            d, a = (jnp.concatenate(pair) for pair in pairs)
            return Sum([*self._terms, *other._terms], (d, a), (*self._after, *other._after))
        terms = [*self._terms, *other._terms]
        return Sum(terms, self._outer or other._outer, (*self._after, *other._after))

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Sum) or jnp.ndim(other):
            return self.formed() * (other.formed() if isinstance(other, Sum) else other)
        terms = [(other if scale is ONE else scale * other, array) for scale, array in self._terms]
        outer = None if self._outer is None else (self._outer[0] * jnp.asarray(other, self.dtype), self._outer[1])
        return Sum(terms, outer, self._after)

    def __neg__(self) -> Any:
        return self * -1.0

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, Sum) or jnp.ndim(other):
            return self.formed() / (other.formed() if isinstance(other, Sum) else other)
        return self * (1 / other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.formed()


ONE = 1.0


def outer(d: jax.Array, a: jax.Array, after: tuple[jax.Array, ...] = ()) -> Any:
    """dᵀa for d [n, out], a [n, in]: as a `Sum` where a kernel can add it to other arrays, else as an array."""
    return Sum([], (d, a), after) if ops.adds_outer(d, a) else ops.outer_sum(d, a)


def lazy(tree: Any) -> Any:
    """A pytree whose matrices are sums of one term, so that what is added to them is formed together with them."""
    return jax.tree.map(lambda leaf: Sum([(ONE, leaf)]) if ops.summable(leaf) else leaf, tree)


def formed(tree: Any) -> Any:
    """A pytree of arrays."""
    return jax.tree.map(lambda leaf: leaf.formed() if isinstance(leaf, Sum) else leaf, tree)
