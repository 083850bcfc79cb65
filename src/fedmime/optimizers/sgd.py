"""Stochastic gradient descent, which has no statistics."""

from fedmime.hyperparameters import recipe
from fedmime.optimizers.base import Affine, BaseOptimizer
from fedmime.vector import Vector, zeros


@recipe
class SGD(BaseOptimizer):
    """Gradient descent as a recipe: U(g) = g. The statistics are empty."""

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
