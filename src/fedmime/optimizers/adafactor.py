"""AdaFactor: the accumulator of a matrix as the outer product of its row and column means."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedmime.numbers import NON_NEGATIVE, POSITIVE, Number, Value, checked, number, recipe
from fedmime.optimizers.base import Adaptive, AdaptiveState
from fedmime.vector import Vector

Factors = tuple[jax.Array, ...]  # (row means, column means) of a matrix; (v,) of a vector


def _means(square: jax.Array) -> Factors:
    if square.ndim < 2:
        return (square,)
    return jnp.mean(square, axis=-1, keepdims=True), jnp.mean(square, axis=-2, keepdims=True)


def _estimate(factors: Factors) -> jax.Array:
    if len(factors) == 1:
        return factors[0]
    row, column = factors
    total = jnp.mean(row, axis=-2, keepdims=True)
    return row * column / jnp.where(total > 0, total, 1)  # nothing seen so far: zero, not 0/0


@recipe
class Adafactor(Adaptive):
    """s = v in factored form, and the number of gradients seen."""

    decay: Value = number(POSITIVE)
    eps: Value = number(NON_NEGATIVE)
    floor: Value = number(NON_NEGATIVE)

    def init(self, x: Vector) -> AdaptiveState:
        return AdaptiveState(None, jax.tree.map(lambda leaf: _means(jnp.zeros_like(leaf)), x.tree), jnp.zeros(()))

    def accumulate(self, g: Vector, s: AdaptiveState) -> Any:
        beta2 = 1 - (s.count + 1) ** -self.decay
        fresh = jax.tree.map(lambda leaf: _means(leaf * leaf + jnp.asarray(self.eps, leaf.dtype)), g.tree)
        return ((1 - beta2) * Vector(fresh) + beta2 * Vector(s.v)).tree

    def read(self, v: Any, like: Vector) -> Vector:
        return Vector(jax.tree.map(lambda _, factors: _estimate(factors), like.tree, v))


def adafactor(decay: Number = 0.8, eps: Number = 1e-30, floor: Number = 1e-7) -> Adafactor:
    r"""AdaFactor's accumulator: row and column means of $g^2 + \epsilon$, decaying with $1 - t^{-\text{decay}}$.

    $v = r c / \bar r$ over the last two axes; U divides by $\max(\epsilon + \sqrt v, \text{floor})$. Its clipping of
    the update's size is left out: it would make U non-linear in g.

    Reference: Shazeer and Stern, 2018, https://arxiv.org/abs/1804.04235
    """
    return checked(Adafactor(decay, eps, floor))
