"""Adam, and RMSProp, its case without momentum that the theory covers."""

from __future__ import annotations

import jax.numpy as jnp

from fedmime.numbers import NON_NEGATIVE, UNIT, Number, Value, checked, flag, number, recipe, static
from fedmime.optimizers.base import Adaptive, AdaptiveState, Affine, Averaging
from fedmime.vector import Vector, at_least, full, sqrt, zeros


@recipe
class Adam(Averaging):
    """s = (m, v), and the number of gradients seen where the bias is corrected."""

    beta1: Value = number(UNIT)
    beta2: Value = number(UNIT)
    eps: Value = number(NON_NEGATIVE)
    initial: Value = number(NON_NEGATIVE)
    floor: Value = number(NON_NEGATIVE)
    bias_correction: bool = static(default=False)

    def init(self, x: Vector) -> AdaptiveState:
        return super().init(x)._replace(count=jnp.zeros(()) if self.bias_correction else None)

    def accumulate(self, g: Vector, s: AdaptiveState) -> Vector:
        return (1 - self.beta2) * (g * g) + self.beta2 * s.v

    def update(self, g: Vector, s: AdaptiveState) -> Vector:
        if s.count is None:
            return super().update(g, s)
        return self._corrected(g, s, s.v, jnp.maximum(s.count, 1))

    def affine(self, s: AdaptiveState, x: Vector) -> Affine:
        if s.count is None:
            return super().affine(s, x)
        offset = self.update(zeros(x), s)
        return self.update(full(x, 1.0), s) - offset, offset

    def ahead(self, g: Vector, s: AdaptiveState, x: Vector) -> Vector:
        if s.count is None:
            return super().ahead(g, s, x)
        return self._corrected(g, s, self.accumulate(g, s), s.count + 1)

    def _corrected(self, g: Vector, s: AdaptiveState, v: Vector, seen: jnp.ndarray) -> Vector:
        """Divide both averages by the weight that real gradients have in them; `seen` of them are in v."""
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
    r"""Adam, $U(g, s) = ((1-\beta_1) g + \beta_1 m) / \max(\epsilon + \sqrt v, \text{floor})$.

    $V$ moves $m \gets (1-\beta_1) g + \beta_1 m$ and $v \gets (1-\beta_2) g^2 + \beta_2 v$ from $v_0$ = `initial`.
    A coordinate that no gradient has reached has $v = v_0$: with $v_0 = 0$ a frozen step divides it by `eps` alone.
    Priming (see `fm.algorithms.mime`) fills v before the first step; `floor` bounds every denominator from below.

    Reference: Kingma and Ba, 2015, https://arxiv.org/abs/1412.6980
    """
    return checked(Adam(beta1, beta2, eps, initial, floor, flag("adam", "bias_correction", bias_correction)))


@recipe
class RMSProp(Adaptive):
    """s = v."""

    beta2: Value = number(UNIT)
    eps: Value = number(NON_NEGATIVE)
    initial: Value = number(NON_NEGATIVE)
    floor: Value = number(NON_NEGATIVE)

    def init(self, x: Vector) -> AdaptiveState:
        return AdaptiveState(m=None, v=full(x, self.initial))

    def accumulate(self, g: Vector, s: AdaptiveState) -> Vector:
        return (1 - self.beta2) * (g * g) + self.beta2 * s.v


def rmsprop(beta2: Number = 0.99, eps: Number = 1e-7, initial: Number = 0.0, floor: Number = 0.0) -> RMSProp:
    r"""RMSProp, Adam with $\beta_1 = 0$ and so without m: half the statistics to send."""
    return checked(RMSProp(beta2, eps, initial, floor))
