"""Local steps of clients with few examples, which leave the first layer's weights in dual form; see `fedmime.dual`.

Where gradients at x are kept, the first step computes none and leads to x + tau v. From there on nothing goes through
the first layer's weights before the last step is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from fedmime import native
from fedmime.dual import Dual, NotDual, Path
from fedmime.engine.gradients import Batches, FromFactors, Source, loop
from fedmime.vector import Unformed, Vector, is_one

Seen = TypeVar("Seen")

FEW = 320  # examples in the steps after the first: inner products of more of them would cost more than the weights do


class Start(NamedTuple):
    """A client after its first step."""

    x: Vector
    y: Any  # the tree of where the step led
    layer: str  # the one in dual form
    v: jax.Array  # what every step adds to its weights, beside gradients
    tau: jax.Array
    table: jax.Array  # [examples, in] what the layer is applied to
    places: jax.Array  # [steps * batch] examples of all steps in the table
    panels: jax.Array  # v, laid out for products
    first: jax.Array  # of these places, of the second step
    steps: jax.Array  # after the first
    batch: int

    @property
    def pays(self) -> jax.Array:
        """Whether the client has few enough examples."""
        return self.steps * self.batch <= FEW

    def descend(self, step: Callable[[jax.Array, tuple[Vector, Seen]], tuple[Vector, Seen]], seen: Seen) -> Any:
        """How far all steps lead from x, as a tree, and what was seen of them."""
        rows, along, room = native.dual_begin(
            self.table, self.places, self.first, self.steps * self.batch, self.panels, self.v.shape[0], FEW
        )
        path = Path(self.x.tree[self.layer]["w"], self.v, rows, along)

        def body(k: jax.Array, carry: tuple[Any, Seen]) -> tuple[Any, Seen]:
            tree, seen = carry
            weights = self._dual(path, tree, k)
            y, seen = step(k + 1, (Vector.pending(self._with(tree, weights)), seen))
            tree = y.joined(weights.stepped)
            if not isinstance(tree[self.layer]["w"], tuple):
                raise NotDual
            return tree, seen

        tree, seen = loop(self.steps, None, body, (self._with(self.y, (self.tau, room)), seen))
        weights = self._dual(path, tree, self.steps)
        moved = Vector.pending(self._with(tree, path.x)) - self.x
        return self._with(moved.tree, weights.moved()), seen

    def _dual(self, path: Path, tree: Any, k: jax.Array) -> Dual:
        """The weights after so many steps."""
        tau, d = tree[self.layer]["w"]
        return Dual(path, tau, d, k * self.batch)

    def _with(self, tree: Any, weights: Any) -> Any:
        return {**tree, self.layer: {**tree[self.layer], "w": weights}}


def begin(source: Source, x: Vector, y: Vector, batches: Batches, steps: jax.Array) -> Start | None:
    """Where steps in dual form can start from y, to which the first step led from x; else None."""
    sizes, parts = batches.tables.sizes(), y.parts
    if not isinstance(source, FromFactors) or not source.alone or batches.widths > 1 or len(parts) != 2:
        return None
    rules = source.problem.factors
    if rules is None or rules.first is None:
        return None
    field, layer = rules.first
    (one, origin), (tau, along) = parts
    if not is_one(one) or origin is not x.tree:
        return None
    table, places = batches.table(field)
    v = along[layer]["w"]
    if isinstance(v, Unformed) or not native.dual_fits(table, places, v, sizes.batch):
        return None
    after = (batches.first + 1) * sizes.batch
    tau = jnp.asarray(tau, v.dtype)
    return Start(x, y.tree, layer, v, tau, table, places, native.panels(v), after, steps - 1, sizes.batch)
