"""Any optax transformation as a base optimizer."""

from __future__ import annotations

from typing import Any, ClassVar

from fedmime.errors import ConfigError
from fedmime.hyperparameters import recipe, static
from fedmime.optimizers.base import BaseOptimizer, is_optax
from fedmime.vector import Vector


@recipe
class Optax(BaseOptimizer):
    """An optax transformation as a recipe: U is minus its update from the given state, V its new state.

    `linear` is False because a transformation's update need not be linear in the gradient.
    """

    transformation: Any = static()
    linear: ClassVar[bool] = False

    def init(self, x: Vector) -> Any:
        return self.transformation.init(x.tree)

    def update(self, g: Vector, s: Any) -> Vector:
        return -Vector(self.transformation.update(g.tree, s)[0])

    def track(self, g: Vector, s: Any) -> Any:
        return self.transformation.update(g.tree, s)[1]

    def track_at(self, g: Vector, s: Any, x: Vector) -> Any:
        return self.transformation.update(g.tree, s, x.tree)[1]

    def ahead(self, g: Vector, s: Any, x: Vector) -> Vector:
        return -Vector(self.transformation.update(g.tree, s, x.tree)[0])


def from_optax(transformation: Any) -> Optax:
    """Your own optax optimizer, such as `from_optax(optax.adam(1e-2))`: its rate is inside, so use it with `eta=1.0`.

    Optax computes U and V together, so that it can only be applied with lookahead: each local step takes the update
    from the server's state and discards the new state.
    """
    if not is_optax(transformation):
        raise ConfigError(f"from_optax: needs an optax transformation such as optax.adam(1e-2), got {transformation!r}")
    return Optax(transformation)
