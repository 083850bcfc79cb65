"""Nesterov's momentum, the outer optimizer of DiLoCo."""

from typing import ClassVar

from fedmime.hyperparameters import Number, Value, checked, number, recipe
from fedmime.optimizers.base import Affine, BaseOptimizer
from fedmime.validation import UNIT
from fedmime.vector import Vector, zeros


@recipe
class Nesterov(BaseOptimizer):
    """Nesterov's momentum as a recipe; `nesterov` explains its number. The statistics are m."""

    compressible: ClassVar[bool] = True

    beta: Value = number(UNIT)

    def init(self, x: Vector) -> Vector:
        return zeros(x)

    def update(self, g: Vector, s: Vector) -> Vector:
        return g + self.beta * self.track(g, s)

    def affine(self, s: Vector, x: Vector) -> Affine:
        return 1 + self.beta, self.beta * self.beta * s

    def track(self, g: Vector, s: Vector) -> Vector:
        return g + self.beta * s


def nesterov(beta: Number = 0.9) -> Nesterov:
    r"""Nesterov's momentum: a step along the gradient, and then along the momentum that includes it.

    $V(g, m) = g + \beta m$ from $m_0 = 0$ and $U(g, m) = g + \beta V(g, m)$, as deep-learning libraries define it. The
    gradients are summed and not averaged: $\beta = 0$ is SGD, and a constant gradient ends in steps that are
    $1/(1-\beta)$ times as long. U does not use m without g, so that the frozen and the lookahead application are the
    same.

    Args:
        beta: $\beta$ in [0, 1), the weight of earlier gradients.

    Reference: Sutskever et al., 2013, On the importance of initialization and momentum in deep learning.
    """
    return checked(Nesterov(beta))
