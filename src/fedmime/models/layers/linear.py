"""The affine layer and the embedding table."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedmime.kernels import ops
from fedmime.models.layers.bilinear import Pair, bilinear


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
    return ops.inner_products(x, w)


@bilinear
def passed_on(d: jax.Array, w: jax.Array) -> jax.Array:
    """The product d w for d [n, out], w [out, in]: the cotangent of a `dense` layer's input."""
    return ops.products(d, w)


@bilinear
def outer_sum(d: jax.Array, a: jax.Array) -> jax.Array:
    r"""$\sum_j d_j a_j^\top$ for d [n, out], a [n, in]: the weight gradient of `dense`, as one product."""
    return ops.outer_sum(d, a)


def embedding(tokens: jax.Array, table: jax.Array) -> jax.Array:
    """Rows of `table` [vocabulary, width] at integer `tokens` [...]: [..., width]."""
    return jnp.take(table, tokens, axis=0, mode="clip")
