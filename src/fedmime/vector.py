"""Pytrees that add and scale, so that `y - eta * U` is the code. The only home of tree arithmetic."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state

from fedmime import native

Tree = Any
Scalar = float | jax.Array
Parts = Sequence[tuple[Scalar, Tree]]


class Unformed(abc.ABC):
    """A leaf that is not an array yet and is the cheaper, the later it becomes one."""

    @abc.abstractmethod
    def formed(self, scale: Scalar, terms: Sequence[tuple[Scalar, jax.Array]]) -> jax.Array:
        """Its array times `scale`, plus other arrays times their scales."""


@jax.tree_util.register_pytree_node_class
class Vector:
    """A pytree of arrays seen as one vector: element-wise `+ - * /` with vectors of the same tree and with scalars.

    >>> x = Vector({"w": jnp.ones(2), "b": jnp.zeros(1)})
    >>> (x + 3 * x).tree["w"]
    Array([4., 4.], dtype=float32)

    Sums and multiples of a `pending` vector are written down, and computed in one go when the tree is looked at: a
    step `y - eta * (m + g)` then passes once over the weights, and the gradient g need not exist by itself.
    """

    __slots__ = ("_parts", "_trace", "_tree")

    def __init__(self, tree: Tree) -> None:
        self._tree: Tree = tree
        self._parts: Parts = ()  # scales and trees whose sum is still to be formed
        self._trace: Any = None  # where they were written down

    @classmethod
    def pending(cls, tree: Tree) -> Self:
        """A tree whose leaves are arrays or `Unformed`, and whose sums and multiples are formed late."""
        return cls._written([(1.0, tree)])

    @classmethod
    def _written(cls, parts: Parts) -> Self:
        vector = cls(None)
        vector._parts, vector._trace = _merged(parts), get_opaque_trace_state()
        return vector

    @property
    def parts(self) -> Parts:
        """Scales and trees whose sum it is, leaves of which may be `Unformed`."""
        return self._parts or [(1.0, self._tree)]

    @property
    def tree(self) -> Tree:
        """The plain pytree of arrays."""
        if not self._parts:
            return self._tree
        tree = self.joined(form)
        if self._trace == get_opaque_trace_state():  # arrays of an inner trace must not be used outside
            self._tree, self._parts = tree, ()
        return tree

    @property
    def whole(self) -> Tree:
        """The same, but if it is a single tree with `Unformed` leaves, with these."""
        scale, tree = self.parts[0]
        return tree if len(self.parts) == 1 and is_one(scale) else self.tree

    def joined(self, by: Callable[[Sequence[Scalar], Sequence[Any]], Any]) -> Tree:
        """The tree of what a function of scales and corresponding leaves makes of its parts."""
        scales, trees = zip(*self.parts, strict=True)
        return jax.tree.map(lambda *leaves: by(scales, leaves), *trees)

    def tree_flatten(self) -> tuple[tuple[Tree], None]:
        return (self.tree,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Tree]) -> Self:
        return cls(children[0])

    def map(self, function: Callable[..., Any], *others: Vector) -> Vector:
        """Apply a function to corresponding leaves."""
        return Vector(jax.tree.map(function, self.tree, *(other.tree for other in others)))

    def _combine(self, function: Callable[[Any, Any], Any], other: Vector | Scalar) -> Vector:
        if isinstance(other, Vector):
            return self.map(function, other)
        # A scalar takes the dtype of each leaf: a float64 rate must not widen a float32 model.
        return self.map(lambda leaf: function(leaf, jnp.asarray(other, leaf.dtype)))

    def _scaled(self, scale: Scalar) -> Parts:
        return [(scale if is_one(own) else own if _zero(own) else own * scale, tree) for own, tree in self.parts]

    def __add__(self, other: Vector | Scalar) -> Vector:
        if isinstance(other, Vector) and (self._parts or other._parts):
            return Vector._written([*self._scaled(1.0), *other._scaled(1.0)])
        return self._combine(lambda a, b: a + b, other)

    def __sub__(self, other: Vector | Scalar) -> Vector:
        if isinstance(other, Vector) and (self._parts or other._parts):
            return Vector._written([*self._scaled(1.0), *other._scaled(-1.0)])
        return self._combine(lambda a, b: a - b, other)

    def __mul__(self, other: Vector | Scalar) -> Vector:
        if self._parts and not isinstance(other, Vector):
            return Vector._written(self._scaled(other))
        return self._combine(lambda a, b: a * b, other)

    def __truediv__(self, other: Vector | Scalar) -> Vector:
        if self._parts and not isinstance(other, Vector):
            return Vector._written(self._scaled(1 / other))
        return self._combine(lambda a, b: a / b, other)

    def __neg__(self) -> Vector:
        return -1.0 * self

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Scalar) -> Vector:
        return self._combine(lambda a, b: b - a, other)

    def __rtruediv__(self, other: Scalar) -> Vector:
        return self._combine(lambda a, b: b / a, other)

    def __repr__(self) -> str:
        return f"Vector({self.tree!r})"


def form(scales: Sequence[Scalar], leaves: Sequence[Any]) -> jax.Array:
    """The sum of corresponding leaves; one that is not formed yet is formed together with it."""
    terms = list(zip(scales, leaves, strict=True))
    late = next((i for i, leaf in enumerate(leaves) if isinstance(leaf, Unformed)), None)
    scale, last = terms.pop(0 if late is None else late)
    arrays = [(s, leaf.formed(1.0, ()) if isinstance(leaf, Unformed) else leaf) for s, leaf in terms]
    return last.formed(scale, arrays) if isinstance(last, Unformed) else weighted_sum([(scale, last), *arrays])


def put(tables: Tree, row: jax.Array, vector: Vector) -> Tree:
    """Tables [rows, ...] of a vector's leaves with it in one row; where they have no such row, as they are."""
    scales, trees = zip(*vector._scaled(1.0), strict=True)

    def with_row(table: jax.Array, *leaves: Any) -> jax.Array:
        if not any(isinstance(leaf, Unformed) for leaf in leaves) and native.sums(*leaves) and native.usable(table):
            return native.put(table, row, _stacked(scales), *leaves)
        return table.at[row].set(form(scales, leaves), mode="drop")

    return jax.tree.map(with_row, tables, *trees)


def weighted_sum(terms: Sequence[tuple[Scalar, jax.Array]]) -> jax.Array:
    """Arrays times scalars, added up. An array whose scalar is zero does not count, be it NaN."""
    scales, arrays = zip(*terms, strict=True)
    if len(arrays) > 1 and native.sums(*arrays):
        return native.weighted_sum(_stacked(scales), *arrays)
    first, *others = (a if is_one(s) else _product(s, a) for s, a in terms)
    return sum(others, start=first)


def _stacked(scales: Sequence[Scalar]) -> jax.Array:
    return jnp.stack([jnp.asarray(s, jnp.float32) for s in scales])


def _product(scale: Scalar, array: jax.Array) -> jax.Array:
    scale = jnp.asarray(scale, array.dtype)
    return jnp.where(scale == 0, 0, scale * array)


def is_one(scale: Scalar) -> bool:
    """Whether a scale is known to be one when a program is traced."""
    return isinstance(scale, float) and scale == 1.0


def _zero(scale: Scalar) -> bool:
    return isinstance(scale, float) and scale == 0.0


def _merged(parts: Parts) -> Parts:
    """The same sum: each tree once, where its scales are known by now, and none that is to be left out."""
    merged: list[tuple[Scalar, Tree]] = []
    for scale, tree in parts:
        same = next((i for i, (s, t) in enumerate(merged) if t is tree and isinstance(s, float)), None)
        if same is None or not isinstance(scale, float):
            merged.append((scale, tree))
        else:
            merged[same] = (merged[same][0] + scale, tree)
    return [part for part in merged if not _zero(part[0])] or merged[:1]


def zeros(like: Vector) -> Vector:
    """The zero of a vector's space."""
    return like.map(jnp.zeros_like)


def full(like: Vector, value: Scalar) -> Vector:
    """The vector whose entries are all `value`."""
    return like.map(lambda leaf: jnp.full_like(leaf, jnp.asarray(value, leaf.dtype)))


def sqrt(v: Vector) -> Vector:
    """Entry-wise square root."""
    return v.map(jnp.sqrt)


def at_least(v: Vector, floor: Scalar) -> Vector:
    """Entry-wise maximum with a scalar."""
    return v.map(lambda leaf: jnp.maximum(leaf, jnp.asarray(floor, leaf.dtype)))


def dot(a: Vector, b: Vector) -> jax.Array:
    """The inner product, over all leaves. It has no derivative."""
    return _total(lambda p, q: native.dot(p, q) if native.sums(p, q) else jnp.sum(p * q), a, b)


def norm(v: Vector) -> jax.Array:
    """The Euclidean norm, not finite if an entry is not. It has no derivative."""
    return jnp.sqrt(dot(v, v))


def distance(a: Vector, b: Vector) -> jax.Array:
    """The Euclidean norm of a - b. It has no derivative."""
    return jnp.sqrt(squared_distance(a, b))


def squared_distance(a: Vector, b: Vector) -> jax.Array:
    """Its square."""
    return _total(lambda p, q: native.squared_distance(p, q) if native.sums(p, q) else jnp.sum((p - q) ** 2), a, b)


def _total(term: Callable[[jax.Array, jax.Array], jax.Array], a: Vector, b: Vector) -> jax.Array:
    terms = [term(p, q) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    return jnp.sum(jnp.stack(terms)) if terms else jnp.zeros(())


def where(condition: jax.Array, a: Tree, b: Tree) -> Tree:
    """Choose between two pytrees of the same structure by one scalar condition."""

    def chosen(p: Any, q: Any) -> jax.Array:
        p, q = jnp.asarray(p), jnp.asarray(q)
        return native.choose(condition, p, q) if native.sums(p, q) else jnp.where(condition, p, q)

    return jax.tree.map(chosen, a, b)


def finite(tree: Tree) -> jax.Array:
    """Whether every entry of a pytree is finite."""

    def one_by_one() -> jax.Array:
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))

    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    if not leaves:
        return jnp.asarray(True)
    # Squares are summed up faster than entries are looked at; only where the sum is not finite may it be too large.
    return jax.lax.cond(jnp.isfinite(norm(Vector(leaves))), lambda: jnp.asarray(True), one_by_one)


def nbytes(tree: Tree) -> int:
    """Bytes that the arrays of a pytree (or their shapes) take on the wire."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
