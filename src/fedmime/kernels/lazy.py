"""Sums of arrays and an outer product that are computed in one pass over memory.

The gradient of a dense layer's weights is an outer product dᵀa of few rows, and a local step only adds it to other
arrays of the same shape: y − η (c + dᵀa). A `Sum` holds the terms of such an expression until its value is needed; a
kernel then reads every term once and writes the result in the place of the first, so the gradient itself is never
stored. Arrays that an algorithm adds, such as c, are usually the same at every step of a loop: they are added to each
other on their own, and XLA moves that out of the loop. `LazyVector` brings this to algorithms: it is a `Vector` in
every respect, and its arithmetic is deferred where it is the left operand or the other one is a number. Both exist only
while the compiled loops are traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedmime.kernels import ops
from fedmime.vector import Scalar, Vector

Term = tuple[Any, jax.Array]  # a scalar and the array that it multiplies


class Sum:
    """Σ sᵢ·tᵢ + dᵀa, entry by entry. Sums and multiples of it are sums again; other operations form it.

    Args:
        terms: scalars sᵢ and arrays tᵢ [out, in].
        outer: d [n, out] and a [n, in]; None if the sum has no outer product.
        added: scalars and arrays that were added to such a sum; they, too, are terms.
        after: arrays that were computed from the first term, so that it may be overwritten once they are known.
            Naming them spares XLA a copy of that term.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        outer: tuple[jax.Array, jax.Array] | None = None,
        after: tuple[jax.Array, ...] = (),
        added: Sequence[Term] = (),
    ) -> None:
        self._terms, self._outer, self._after, self._added = list(terms), outer, after, list(added)
        self.dtype = outer[0].dtype if outer is not None else (*terms, *added)[0][1].dtype

    def formed(self) -> jax.Array:
        """The value [out, in]."""
        if self._outer is None:
            return ops.weighted_sum([*self._terms, *self._added])
        return ops.add_outer(*self._outer, [*self._terms, *_together(self._added)], self._after)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, Sum):
            if not jnp.ndim(other):
                return self.formed() + other
            other = Sum([], None, (), [(1.0, other)])
        outer = self._outer or other._outer
        if self._outer is not None and other._outer is not None:  # one product over the rows of both
            d, a = (jnp.concatenate(pair) for pair in zip(self._outer, other._outer, strict=True))
            outer = (d, a)
        after, added = (*self._after, *other._after), [*self._added, *other._added]
        return Sum([*self._terms, *other._terms], outer, after, added)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Sum) or jnp.ndim(other):
            return self.formed() * _formed(other)
        outer = None if self._outer is None else (self._outer[0] * jnp.asarray(other, self.dtype), self._outer[1])
        terms, added = ([(scale * other, array) for scale, array in each] for each in (self._terms, self._added))
        return Sum(terms, outer, self._after, added)

    def __neg__(self) -> Any:
        return self * -1.0

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __truediv__(self, other: Any) -> Any:
        return self.formed() / _formed(other)

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.formed()

    __radd__ = __add__
    __rmul__ = __mul__


def _together(added: list[Term]) -> list[Term]:
    """Several terms as one, their sum."""
    return added if len(added) < 2 else [(1.0, ops.weighted_sum(added))]


def _formed(leaf: Any) -> Any:
    return leaf.formed() if isinstance(leaf, Sum) else leaf


@jax.tree_util.register_pytree_node_class
class LazyVector(Vector):
    """A vector whose leaves may be sums that are not computed yet; `tree` computes them."""

    __slots__ = ("_leaves",)

    def __init__(self, tree: Any) -> None:
        self._leaves = tree

    @property
    def tree(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The plain pytree of arrays."""
        return formed(self._leaves)

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.tree,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Vector:
        return Vector(children[0])

    def _combine(self, function: Callable[[Any, Any], Any], other: Vector | Scalar) -> Vector:
        if isinstance(other, Vector):
            leaves = other._leaves if isinstance(other, LazyVector) else other.tree
            return LazyVector(jax.tree.map(function, self._leaves, leaves))
        return LazyVector(jax.tree.map(lambda leaf: function(leaf, jnp.asarray(other, leaf.dtype)), self._leaves))


def outer(d: jax.Array, a: jax.Array, after: tuple[jax.Array, ...] = ()) -> Any:
    """dᵀa for d [n, out], a [n, in]: as a `Sum` where a kernel can add it to other arrays, else as an array."""
    return Sum([], (d, a), after) if ops.adds_outer(d, a) else ops.outer_sum(d, a)


def lazy(carry: Any) -> Any:
    """A pytree whose vectors are lazy: what is added to a matrix is computed together with it."""

    def vector(node: Any) -> Any:
        if not isinstance(node, Vector):
            return node
        return LazyVector(jax.tree.map(lambda leaf: Sum([(1.0, leaf)]) if ops.summable(leaf) else leaf, node.tree))

    return jax.tree.map(vector, carry, is_leaf=lambda node: isinstance(node, Vector))


def formed(tree: Any) -> Any:
    """A pytree of arrays, its vectors plain ones."""
    return jax.tree.map(_formed, tree, is_leaf=lambda node: isinstance(node, Sum))
