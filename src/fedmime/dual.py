r"""The weights of a dense layer in dual form, while a client trains.

Where a layer is applied to the examples themselves, its weights are at any local step
$W = x + \tau v + \sum_j d_j a_j^\top$: the point where the client started, what every step adds (momentum), and outer
products with the examples a of earlier steps. A mini-batch's outputs are then
$A W^\top = A x^\top + \tau A v^\top + \sum_j (A a_j) d_j^\top$, of which the full gradient has computed the first term
and one large product finds the second for all of a client's examples. For clients with a few hundred of them the third
is less work than going through W and v at every step. W itself is formed once, after the last step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedmime import native
from fedmime.vector import Scalar, Unformed, form, is_one


class NotDual(Exception):
    """A step adds something else to the weights."""


class Outer(Unformed):
    """Outer products of rows d, one for each example, with others."""

    d: jax.Array
    more: Any  # other products, or None


class Path(NamedTuple):
    """What the weights of a client's layer are made of."""

    x: jax.Array  # [out, in]
    v: jax.Array  # [out, in]
    rows: jax.Array  # [most, in] the examples of its mini-batches
    along: jax.Array  # [most, out] their inner products with v


@dataclasses.dataclass(frozen=True, eq=False)
class Dual(Unformed):
    """The weights before the mini-batch whose rows begin at a `place`."""

    path: Path
    tau: jax.Array
    d: jax.Array  # [most, out], written up to the place
    place: jax.Array

    def outputs(self, at_x: jax.Array) -> jax.Array:
        """The layer's outputs on the mini-batch, where those at x are known."""
        batch = at_x.shape[0]
        along = lax.dynamic_slice_in_dim(self.path.along, self.place, batch)
        return at_x + self.tau * along + native.dual_products(self.path.rows, self.d, self.place, batch)

    def stepped(self, scales: Sequence[Scalar], leaves: Sequence[Any]) -> Any:
        """Corresponding leaves added up: if it is among them, tau and d after this step, else their sum."""
        if not any(leaf is self for leaf in leaves):
            return form(scales, leaves)
        tau, d = self.tau, self.d
        for scale, leaf in zip(scales, leaves, strict=True):
            if leaf is self and is_one(scale):
                continue
            if leaf is self.path.v:
                tau = tau + jnp.asarray(scale, tau.dtype)
            elif isinstance(leaf, Outer) and leaf.more is None and d is self.d:
                d = lax.dynamic_update_slice_in_dim(d, jnp.asarray(scale, d.dtype) * leaf.d, self.place, 0)
            else:
                raise NotDual
        if d is self.d:  # no gradient: this mini-batch's rows of d would be missing
            raise NotDual
        return tau, d

    def moved(self) -> jax.Array:
        """How far they are from x."""
        return native.dual_sum(self.place, self.d, self.path.rows, self.tau[None], [self.path.v])

    def formed(self, scale: Scalar, terms: Sequence[tuple[Scalar, jax.Array]]) -> jax.Array:
        return form([scale, scale, *(s for s, _ in terms)], [self.path.x, self.moved(), *(array for _, array in terms)])
