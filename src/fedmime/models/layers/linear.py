"""The affine layer and the embedding table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from fedmime import native
from fedmime.dual import Outer
from fedmime.models.layers.bilinear import Pair, bilinear
from fedmime.rows import Rows
from fedmime.vector import Scalar, weighted_sum


def dense(x: jax.Array, w: jax.Array, b: jax.Array | None = None) -> jax.Array:
    r"""$x W^\top + b$ over the last axis: x [..., in], w [out, in], b [out] give [..., out].

    Weights are stored (out, in): the forward product then reads both operands along their rows, which made a
    784-62 logistic step about a quarter faster than (in, out) on a CPU.
    """
    z = _matmul(x.reshape(-1, x.shape[-1]), w).reshape(*x.shape[:-1], w.shape[0])
    return z if b is None else z + b


@jax.custom_vjp
def _matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    """The product x w^T for x [n, in], w [out, in]."""
    return inner_products(x, w)


def _matmul_forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, Pair]:
    return inner_products(x, w), (x, w)


def _matmul_backward(saved: Pair, d: jax.Array) -> Pair:
    x, w = saved
    return passed_on(d, w), outer_sum(d, x)


_matmul.defvjp(_matmul_forward, _matmul_backward)


@bilinear
def inner_products(x: jax.Array, w: jax.Array) -> jax.Array:
    """The product x w^T for x [n, in], w [out, in]."""
    if native.multiplies(x, w):
        return native.inner_products(x, w)
    return lax.dot_general(x, w, (((1,), (1,)), ((), ())))


@bilinear
def passed_on(d: jax.Array, w: jax.Array) -> jax.Array:
    """The product d w for d [n, out], w [out, in]: the cotangent of a `dense` layer's input."""
    return native.products(d, w) if native.passes_on(d, w) else d @ w


@bilinear
def outer_sum(d: jax.Array, a: jax.Array) -> jax.Array:
    r"""$\sum_j d_j a_j^\top$ for d [n, out], a [n, in]: the weight gradient of `dense`, as one product.

    For a mini-batch, the barrier makes XLA:CPU store the small transposed operand instead of walking it with a stride.
    """
    if native.adds_outer(d, a):
        return native.outer_sum(d, a)
    small = d.shape[0] <= 32
    return (lax.optimization_barrier(d.T) if small else d.T) @ a


@dataclasses.dataclass(frozen=True, eq=False)
class OuterSum(Outer):
    """The `outer_sum` of d and a, to be added to other arrays while it is computed; and of `more`, a d and its rows a.

    Other arrays that were computed with the layer's weights are named in `after`, so that the weights can be written
    over in place.
    """

    d: jax.Array
    a: jax.Array
    after: tuple[jax.Array, ...] = ()
    more: tuple[jax.Array, Rows] | None = None

    def formed(self, scale: Scalar, terms: Sequence[tuple[Scalar, jax.Array]]) -> jax.Array:
        """One pass over the arrays, the sum of the products never stored by itself."""
        scale, arrays = jnp.asarray(scale, self.d.dtype), [array for _, array in terms]
        more = () if self.more is None else (scale * self.more[0], self.more[1].table, self.more[1].places)
        if not arrays or not native.adds_outer(self.d, self.a, arrays, more):
            return weighted_sum([*terms, (1.0, self._alone(scale))])
        scales = jnp.stack([jnp.asarray(s, self.d.dtype) for s, _ in terms])
        return native.add_outer(scale * self.d, self.a, scales, arrays, self.after, more)

    def _alone(self, scale: jax.Array) -> jax.Array:
        d, a = self.d, self.a
        if self.more is not None:
            d, a = jnp.concatenate([d, self.more[0]]), jnp.concatenate([a, self.more[1].taken()])
        return outer_sum(scale * d, a)


def embedding(tokens: jax.Array, table: jax.Array) -> jax.Array:
    """Rows of `table` [vocabulary, width] at integer `tokens` [...]: [..., width]."""
    return jnp.take(table, tokens, axis=0, mode="clip")
