"""Momentum as an exponential moving average of gradients."""

from fedmime.numbers import UNIT, Number, Value, checked, number, recipe
from fedmime.optimizers.base import Affine, BaseOptimizer
from fedmime.vector import Vector, zeros


@recipe
class Momentum(BaseOptimizer):
    """s = m."""

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
    r"""Momentum, $U(g, m) = V(g, m) = (1-\beta) g + \beta m$ from $m_0 = 0$.

    U is what V will make of m, so applying it frozen or with lookahead is the same.
    """
    return checked(Momentum(beta))
