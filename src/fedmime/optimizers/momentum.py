"""Momentum as an exponential moving average of gradients."""

from typing import ClassVar

from fedmime.hyperparameters import Number, Value, checked, number, recipe
from fedmime.optimizers.base import Affine, BaseOptimizer
from fedmime.validation import UNIT
from fedmime.vector import Vector, zeros


@recipe
class Momentum(BaseOptimizer):
    """Momentum as a recipe; `momentum` explains its number. The statistics are m."""

    compressible: ClassVar[bool] = True

    beta: Value = number(UNIT)

    def init(self, x: Vector) -> Vector:
        return zeros(x)

    def update(self, g: Vector, s: Vector) -> Vector:
        return (1 - self.beta) * g + self.beta * s

    def affine(self, s: Vector, x: Vector) -> Affine:
        return 1 - self.beta, self.beta * s

    def track(self, g: Vector, s: Vector) -> Vector:
        return self.update(g, s)


def momentum(beta: Number = 0.9) -> Momentum:
    r"""Momentum: an exponential moving average of gradients.

    $U(g, m) = V(g, m) = (1-\beta) g + \beta m$ from $m_0 = 0$. U equals the new m, so that the frozen and the lookahead
    application are the same.

    Args:
        beta: $\beta$ in [0, 1), the weight of earlier gradients.
    """
    return checked(Momentum(beta))
