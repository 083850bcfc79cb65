"""AdaFactor: the accumulator of a matrix as the outer product of its row and column means.

The statistics of an n x m matrix are n + m numbers instead of n m, so that sending them to clients costs little.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedmime.hyperparameters import Number, Value, checked, number, recipe
from fedmime.optimizers.base import Adaptive, AdaptiveState
from fedmime.validation import POSITIVE
from fedmime.vector import Vector

Factors = tuple[jax.Array, ...]  # (row means, column means) of a matrix; (v,) of a vector


def _means(square: jax.Array) -> Factors:
    """The factors of squares: the row means [..., n, 1] and column means [..., 1, m] of a matrix; a vector as it is."""
    if square.ndim < 2:
        return (square,)
    return jnp.mean(square, axis=-1, keepdims=True), jnp.mean(square, axis=-2, keepdims=True)


def _estimate(factors: Factors) -> jax.Array:
    """The accumulator of every weight from its factors: row times column, over their mean.

    Before the first gradient all factors are zero, and the estimate is zero instead of 0/0.
    """
    if len(factors) == 1:
        return factors[0]
    row, column = factors
    total = jnp.mean(row, axis=-2, keepdims=True)
    return row * column / jnp.where(total > 0, total, 1)


@recipe
class Adafactor(Adaptive):
    """AdaFactor as a recipe; `adafactor` explains its numbers.

    The statistics are v in factors and the gradients seen.
    """

    decay: Value = number(POSITIVE)

    def init(self, x: Vector) -> AdaptiveState:
        return AdaptiveState(None, jax.tree.map(lambda leaf: _means(jnp.zeros_like(leaf)), x.tree), jnp.zeros(()))

    def accumulate(self, g: Vector, s: AdaptiveState) -> Any:
        """Move the factors towards those of g² + ε, with the weight of old gradients growing as the count does."""
        beta2 = 1 - (s.count + 1) ** -self.decay
        fresh = jax.tree.map(lambda leaf: _means(leaf * leaf + jnp.asarray(self.eps, leaf.dtype)), g.tree)
        return ((1 - beta2) * Vector(fresh) + beta2 * Vector(s.v)).tree

    def read(self, v: Any, like: Vector) -> Vector:
        return Vector(jax.tree.map(lambda _, factors: _estimate(factors), like.tree, v))


def adafactor(decay: Number = 0.8, eps: Number = 1e-30, floor: Number = 1e-7) -> Adafactor:
    r"""AdaFactor: row and column means of $g^2$ instead of one accumulator per weight.

    The means of $g^2 + \epsilon$ decay with $\beta_{2,t} = 1 - t^{-\text{decay}}$. $v = r c / \bar r$ over the last two
    axes, and U divides by $\max(\epsilon + \sqrt v, \text{floor})$. The clipping of the update's size in the original
    is left out: it would make U non-linear in g.

    Args:
        decay: exponent of the decay, positive.
        eps: added to squares and to denominators, so that they are not zero.
        floor: least denominator.

    Reference: Shazeer and Stern, 2018, https://arxiv.org/abs/1804.04235
    """
    return checked(Adafactor(decay=decay, eps=eps, floor=floor))
