"""Pytrees by structure, shapes and types alone: what a trace depends on, and the key under which it can be cached."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def hashable(tree: Any) -> tuple[Any, tuple[Any, ...]]:
    """The structure of a pytree, and the shapes and types of its leaves, as a hashable key.

    A schedule among the leaves counts as a number, because each round replaces it by its value.
    """
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(_kind(leaf) for leaf in leaves)


def _kind(leaf: Any) -> tuple[tuple[int, ...], Any]:
    """The shape and type of a leaf. Arrays come first because they are the usual case and need no conversion."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf.shape, leaf.dtype
    if callable(leaf) or type(leaf) is float:
        return (), jnp.result_type(float)
    return jnp.shape(leaf), jnp.result_type(leaf)


def abstract(tree: Any, leaves: tuple[Any, ...]) -> Any:
    """The inverse of `hashable`: the pytree with `jax.ShapeDtypeStruct` leaves."""
    return jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
