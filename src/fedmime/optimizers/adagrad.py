"""AdaGrad: divide by the root of the sum of all squared gradients."""

from fedmime.hyperparameters import Number, Value, checked, number, recipe
from fedmime.optimizers.base import Adaptive, AdaptiveState
from fedmime.validation import NON_NEGATIVE
from fedmime.vector import Vector, full


@recipe
class Adagrad(Adaptive):
    """AdaGrad as a recipe; `adagrad` explains its numbers. The statistics are v, which only grows."""

    initial: Value = number(NON_NEGATIVE)
    eps: Value = number(NON_NEGATIVE)
    floor: Value = number(NON_NEGATIVE)

    def init(self, x: Vector) -> AdaptiveState:
        return AdaptiveState(m=None, v=full(x, self.initial))

    def accumulate(self, g: Vector, s: AdaptiveState) -> Vector:
        return s.v + g * g


def adagrad(initial: Number = 0.1, eps: Number = 1e-7, floor: Number = 0.0) -> Adagrad:
    r"""AdaGrad: divide by the root of the sum of all squared gradients.

    $U(g, v) = g / \max(\epsilon + \sqrt v, \text{floor})$ and $V(g, v) = v + g^2$.

    Args:
        initial: $v_0$, the accumulator before the first gradient.
        eps: $\epsilon$, added to every denominator.
        floor: least denominator.

    Reference: Duchi, Hazan and Singer, 2011, https://jmlr.org/papers/v12/duchi11a.html
    """
    return checked(Adagrad(initial, eps, floor))
