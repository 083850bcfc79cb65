"""Yogi: Adam whose accumulator forgets no faster than the squared gradient allows."""

from __future__ import annotations

import jax.numpy as jnp

from fedmime.numbers import NON_NEGATIVE, UNIT, Number, Value, checked, number, recipe
from fedmime.optimizers.base import AdaptiveState, Averaging
from fedmime.vector import Vector


@recipe
class Yogi(Averaging):
    """s = (m, v)."""

    beta1: Value = number(UNIT)
    beta2: Value = number(UNIT)
    eps: Value = number(NON_NEGATIVE)
    initial: Value = number(NON_NEGATIVE)
    floor: Value = number(NON_NEGATIVE)

    def accumulate(self, g: Vector, s: AdaptiveState) -> Vector:
        square = g * g
        return s.v - (1 - self.beta2) * ((s.v - square).map(jnp.sign) * square)


def yogi(
    beta1: Number = 0.9, beta2: Number = 0.99, eps: Number = 1e-3, initial: Number = 1e-6, floor: Number = 0.0
) -> Yogi:
    r"""Yogi, as Adam with $v \gets v - (1-\beta_2)\,\mathrm{sign}(v - g^2)\,g^2$: suited to sparse gradients.

    Reference: Zaheer et al., 2018, Adaptive methods for nonconvex optimization.
    """
    return checked(Yogi(beta1, beta2, eps, initial, floor))
