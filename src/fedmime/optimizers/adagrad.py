"""AdaGrad: divide by the root of the sum of all squared gradients."""

from fedmime.hyperparameters import Number, checked, recipe
from fedmime.optimizers.base import AdaptiveState, Elementwise
from fedmime.vector import Vector


@recipe
class Adagrad(Elementwise):
    """AdaGrad as a recipe; `adagrad` explains its numbers. The statistics are v, which only grows."""

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
    return checked(Adagrad(initial=initial, eps=eps, floor=floor))
