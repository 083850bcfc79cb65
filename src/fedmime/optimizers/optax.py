"""Any optax transformation as a base optimizer."""

from __future__ import annotations

from typing import Any, ClassVar

from fedmime.errors import ConfigError
from fedmime.numbers import recipe, static
from fedmime.optimizers.base import BaseOptimizer, is_optax
from fedmime.vector import Vector


@recipe
class Optax(BaseOptimizer):
    """U is minus the update that optax returns from the given state, V its new state."""

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
    """The optimizer you already have, `from_optax(optax.adam(1e-2))`: its rate is inside, so use it with `eta=1.0`.

    Optax fuses U and V, so it can only be applied with lookahead: each local step asks for the update from the
    server's state and throws the new state away.
    """
    if not is_optax(transformation):
        raise ConfigError(f"from_optax: needs an optax transformation such as optax.adam(1e-2), got {transformation!r}")
    return Optax(transformation)
