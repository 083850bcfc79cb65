"""Yogi: Adam with an accumulator that changes by no more than the squared gradient."""

from __future__ import annotations

import jax.numpy as jnp

from fedmime.hyperparameters import Number, Value, checked, number, recipe
from fedmime.optimizers.base import AdaptiveState, Averaging
from fedmime.validation import UNIT
from fedmime.vector import Vector


@recipe
class Yogi(Averaging):
    """Yogi as a recipe; `yogi` explains its numbers. The statistics are m and v."""

    beta2: Value = number(UNIT)

    def accumulate(self, g: Vector, s: AdaptiveState) -> Vector:
        square = g * g
        return s.v - (1 - self.beta2) * ((s.v - square).map(jnp.sign) * square)


def yogi(
    beta1: Number = 0.9, beta2: Number = 0.99, eps: Number = 1e-3, initial: Number = 1e-6, floor: Number = 0.0
) -> Yogi:
    r"""Yogi: Adam with an accumulator that forgets slowly, suited to sparse gradients.

    It is Adam with $v \gets v - (1-\beta_2)\,\mathrm{sign}(v - g^2)\,g^2$: where gradients are small, v decreases
    slowly, so that steps do not grow suddenly.

    Args:
        beta1: $\beta_1$ in [0, 1), of the moving average m.
        beta2: $\beta_2$ in [0, 1), of the accumulator v.
        eps: $\epsilon$, added to every denominator.
        initial: $v_0$, the accumulator before the first gradient.
        floor: least denominator.

    Reference: Zaheer et al., 2018, Adaptive methods for nonconvex optimization.
    """
    return checked(Yogi(beta1=beta1, beta2=beta2, eps=eps, initial=initial, floor=floor))
