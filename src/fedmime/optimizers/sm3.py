"""SM3: one accumulator per row and per column instead of one per weight."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fedmime.hyperparameters import Number, checked, recipe
from fedmime.optimizers.base import Adaptive, AdaptiveState
from fedmime.vector import Vector

Covers = tuple[jax.Array, ...]  # for each axis of a weight array, the accumulators of its slices


def _blank(leaf: jax.Array) -> Covers:
    """The zero accumulators of a weight array: one array per axis, whose other axes have length one."""
    if leaf.ndim < 2:
        return (jnp.zeros_like(leaf),)
    shapes = ([n if axis == own else 1 for axis, n in enumerate(leaf.shape)] for own in range(leaf.ndim))
    return tuple(jnp.zeros(shape, leaf.dtype) for shape in shapes)


def _estimate(covers: Covers) -> jax.Array:
    """The accumulator of each weight: the least of the slices that contain it, all of which are upper bounds."""
    return functools.reduce(jnp.minimum, covers)


def _grow(g: jax.Array, covers: Covers) -> Covers:
    """The accumulators after a gradient: the largest new estimate in each slice."""
    nu = _estimate(covers) + g * g
    if nu.ndim < 2:
        return (nu,)
    return tuple(
        jnp.max(nu, axis=tuple(a for a in range(nu.ndim) if a != own), keepdims=True) for own in range(nu.ndim)
    )


@recipe
class SM3(Adaptive):
    """SM3 as a recipe; `sm3` explains its numbers.

    The statistics are v, a tuple of accumulators for every weight array.
    """

    def init(self, x: Vector) -> AdaptiveState:
        return AdaptiveState(m=None, v=jax.tree.map(_blank, x.tree))

    def accumulate(self, g: Vector, s: AdaptiveState) -> Any:
        return jax.tree.map(_grow, g.tree, s.v)

    def read(self, v: Any, like: Vector) -> Vector:
        return Vector(jax.tree.map(lambda _, covers: _estimate(covers), like.tree, v))


def sm3(eps: Number = 1e-7, floor: Number = 0.0) -> SM3:
    r"""SM3-II: one accumulator per row and column, by which Adagrad's are bounded from above.

    $\nu = \min_r \mu_r + g^2$ over the slices r that contain a weight, then $\mu_r = \max \nu$ over the slice. U
    divides by $\max(\epsilon + \sqrt{\min_r \mu_r}, \text{floor})$. The statistics of an n × m weight are n + m
    numbers, so that sending them to clients costs little.

    Args:
        eps: $\epsilon$, added to every denominator.
        floor: least denominator.

    Reference: Anil et al., 2019, https://arxiv.org/abs/1901.11150
    """
    return checked(SM3(eps=eps, floor=floor))
