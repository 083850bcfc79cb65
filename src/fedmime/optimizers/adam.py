"""Adam, and RMSProp, its special case without momentum, which the paper's theory covers."""

from __future__ import annotations

import jax.numpy as jnp

from fedmime.hyperparameters import Number, Value, checked, number, recipe, static
from fedmime.optimizers.base import AdaptiveState, Averaging, Elementwise
from fedmime.validation import UNIT, flag
from fedmime.vector import Vector, at_least, sqrt


@recipe
class Adam(Averaging):
    """Adam as a recipe; `adam` explains its numbers.

    The statistics are m, v and, with bias correction, the number of gradients seen.
    """

    beta2: Value = number(UNIT)
    bias_correction: bool = static(default=False)

    def init(self, x: Vector) -> AdaptiveState:
        return super().init(x)._replace(count=jnp.zeros(()) if self.bias_correction else None)

    def accumulate(self, g: Vector, s: AdaptiveState) -> Vector:
        """The moving average of squared gradients: v ← (1 − β₂) g² + β₂ v."""
        return (1 - self.beta2) * (g * g) + self.beta2 * s.v

    def update(self, g: Vector, s: AdaptiveState) -> Vector:
        """U(g, s). With bias correction, statistics that have seen no gradient count as having seen one."""
        if s.count is None:
            return super().update(g, s)
        return self._corrected(g, s, s.v, jnp.maximum(s.count, 1))

    def ahead(self, g: Vector, s: AdaptiveState, x: Vector) -> Vector:
        if s.count is None:
            return super().ahead(g, s, x)
        return self._corrected(g, s, self.accumulate(g, s), s.count + 1)

    def _corrected(self, g: Vector, s: AdaptiveState, v: Vector, seen: jnp.ndarray) -> Vector:
        """U with bias correction: both averages divided by the total weight that real gradients have in them.

        Args:
            g: the gradient.
            s: the statistics, which provide m and the count.
            v: the accumulator that U divides by, of s or after g.
            seen: number of gradients in v.
        """
        m_hat = self.smooth(g, s) / (1 - self.beta1 ** (s.count + 1))
        v_hat = v / (1 - self.beta2**seen)
        return m_hat / at_least(sqrt(v_hat) + self.eps, self.floor)


def adam(
    beta1: Number = 0.9,
    beta2: Number = 0.99,
    eps: Number = 1e-7,
    initial: Number = 0.0,
    bias_correction: bool = False,
    floor: Number = 0.0,
) -> Adam:
    r"""Adam: a moving average of gradients over the root of a moving average of their squares.

    $U(g, s) = ((1-\beta_1) g + \beta_1 m) / \max(\epsilon + \sqrt v, \text{floor})$. V moves
    $m \gets (1-\beta_1) g + \beta_1 m$ and $v \gets (1-\beta_2) g^2 + \beta_2 v$.

    A coordinate that no gradient has reached has $v = v_0$: with $v_0 = 0$ a frozen step divides it by `eps` alone.
    Priming (see `fm.algorithms.mime`) fills v before the first step; `floor` bounds every denominator from below.

    Args:
        beta1: $\beta_1$ in [0, 1).
        beta2: $\beta_2$ in [0, 1).
        eps: $\epsilon$, added to every denominator.
        initial: $v_0$, the accumulator before the first gradient.
        bias_correction: divide both averages by the total weight of the gradients in them, as the original does.
        floor: least denominator.

    Reference: Kingma and Ba, 2015, https://arxiv.org/abs/1412.6980
    """
    corrected = flag("adam", "bias_correction", bias_correction)
    return checked(Adam(beta1=beta1, beta2=beta2, eps=eps, initial=initial, floor=floor, bias_correction=corrected))


@recipe
class RMSProp(Elementwise):
    """RMSProp as a recipe; `rmsprop` explains its numbers. The statistics are v."""

    beta2: Value = number(UNIT)

    def accumulate(self, g: Vector, s: AdaptiveState) -> Vector:
        return (1 - self.beta2) * (g * g) + self.beta2 * s.v


def rmsprop(beta2: Number = 0.99, eps: Number = 1e-7, initial: Number = 0.0, floor: Number = 0.0) -> RMSProp:
    r"""RMSProp: Adam without the moving average of gradients, which halves the statistics to send.

    $U(g, v) = g / \max(\epsilon + \sqrt v, \text{floor})$ and $V(g, v) = (1-\beta_2) g^2 + \beta_2 v$.

    Args:
        beta2: $\beta_2$ in [0, 1).
        eps: $\epsilon$, added to every denominator.
        initial: $v_0$, the accumulator before the first gradient.
        floor: least denominator.
    """
    return checked(RMSProp(beta2=beta2, eps=eps, initial=initial, floor=floor))
