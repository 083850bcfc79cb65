"""Pytrees by their shapes and dtypes alone: what a trace depends on, and what it may be cached by."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def hashable(tree: Any) -> tuple[Any, tuple[Any, ...]]:
    """A pytree's structure, shapes and dtypes; schedules among its leaves stand for numbers."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(_kind(leaf) for leaf in leaves)


def _kind(leaf: Any) -> tuple[tuple[int, ...], Any]:
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):  # the usual case, and fast
        return leaf.shape, leaf.dtype
    if callable(leaf) or type(leaf) is float:
        return (), jnp.result_type(float)
    return jnp.shape(leaf), jnp.result_type(leaf)


def abstract(tree: Any, leaves: tuple[Any, ...]) -> Any:
    """The pytree again, with shapes in place of arrays."""
    return jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
