"""Gradient descent: no statistics at all."""

from fedmime.numbers import recipe
from fedmime.optimizers.base import Affine, BaseOptimizer
from fedmime.vector import Vector, zeros


@recipe
class SGD(BaseOptimizer):
    """U(g) = g."""

    def init(self, x: Vector) -> tuple[()]:
        return ()

    def update(self, g: Vector, s: tuple[()]) -> Vector:
        return g

    def affine(self, s: tuple[()], x: Vector) -> Affine:
        return 1.0, zeros(x)

    def track(self, g: Vector, s: tuple[()]) -> tuple[()]:
        return ()


def sgd() -> SGD:
    """Plain gradient steps, $U(g) = g$."""
    return SGD()
