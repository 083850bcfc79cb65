"""Pytrees that add and scale, so that `y - eta * U` is the code. The only home of tree arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

__all__ = [
    "Vector",
    "at_least",
    "dot",
    "finite",
    "full",
    "nbytes",
    "norm",
    "sqrt",
    "squared_distance",
    "where",
    "zeros",
]

Tree = Any
Scalar = float | jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(eq=False)
class Vector:
    """A pytree of arrays seen as one vector: element-wise `+ - * /` with vectors of the same tree and with scalars.

    >>> x = Vector({"w": jnp.ones(2), "b": jnp.zeros(1)})
    >>> (x + 3 * x).tree["w"]
    Array([4., 4.], dtype=float32)
    """

    tree: Tree

    def map(self, function: Callable[..., Any], *others: Vector) -> Vector:
        """Apply a function to corresponding leaves."""
        return Vector(jax.tree.map(function, self.tree, *(other.tree for other in others)))

    def _combine(self, function: Callable[[Any, Any], Any], other: Vector | Scalar) -> Vector:
        if isinstance(other, Vector):
            return self.map(function, other)
        # A scalar takes the dtype of each leaf: a float64 rate must not widen a float32 model.
        return self.map(lambda leaf: function(leaf, jnp.asarray(other, leaf.dtype)))

    def __add__(self, other: Vector | Scalar) -> Vector:
        return self._combine(lambda a, b: a + b, other)

    def __sub__(self, other: Vector | Scalar) -> Vector:
        return self._combine(lambda a, b: a - b, other)

    def __mul__(self, other: Vector | Scalar) -> Vector:
        return self._combine(lambda a, b: a * b, other)

    def __truediv__(self, other: Vector | Scalar) -> Vector:
        return self._combine(lambda a, b: a / b, other)

    def __neg__(self) -> Vector:
        return self * -1

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Scalar) -> Vector:
        return self._combine(lambda a, b: b - a, other)

    def __rtruediv__(self, other: Scalar) -> Vector:
        return self._combine(lambda a, b: b / a, other)


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
    """The inner product over all leaves."""
    terms = [jnp.sum(p * q) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    return jnp.sum(jnp.stack(terms)) if terms else jnp.zeros(())


def norm(v: Vector) -> jax.Array:
    """The Euclidean norm; it is not finite if an entry is not."""
    return jnp.sqrt(dot(v, v))


def squared_distance(a: Vector, b: Vector) -> jax.Array:
    """The squared Euclidean norm of a - b."""
    difference = a - b
    return dot(difference, difference)


def where(condition: jax.Array, a: Tree, b: Tree) -> Tree:
    """Choose between two pytrees of the same structure by one scalar condition."""
    return jax.tree.map(lambda p, q: jnp.where(condition, p, q), a, b)


def finite(tree: Tree) -> jax.Array:
    """Whether every entry of a pytree is finite."""
    return jnp.all(jnp.asarray([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)], bool))


def nbytes(tree: Tree) -> int:
    """Bytes that the arrays of a pytree, or their shapes, take in memory."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def by_place(tree: Any) -> dict[str, Any]:
    """The arrays of a pytree by their places in it, such as `dense0.w`."""
    places, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in places}
