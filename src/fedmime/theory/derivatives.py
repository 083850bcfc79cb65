"""Losses, gradients and Hessian-vector products of weighted examples: the three compiled programs of `constants`.

Every program loops over chunks of examples with a trip count that is an argument, so its memory is that of one chunk
and clients of other sizes need no other program. Hessian-vector products are taken forward over reverse; no Hessian is
ever formed. Models are flat vectors here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Var
from jax.flatten_util import ravel_pytree

from fedmime.models.problem import Batch, Params, Problem

Loss = Callable[[Params, Batch], jax.Array]


class Rows(NamedTuple):
    """Examples in chunks, padded at the end by rows that repeat real ones and weigh nothing."""

    fields: dict[str, np.ndarray]  # [chunks, chunk, ...]
    weights: np.ndarray  # [chunks, chunk]
    count: int  # chunks that hold an example


class Programs(NamedTuple):
    """What is computed of a problem, each part compiled on its own."""

    gradient: Callable[..., tuple[jax.Array, jax.Array]]  # (params, rows) -> weighted loss and gradient
    scatter: Callable[..., tuple[jax.Array, jax.Array]]  # (params, batches, mean) -> spread of mini-batch gradients
    hessian: Callable[..., jax.Array]  # (params, fields, weights, first, last, v) -> weighted Hessian times v


def rows(columns: Mapping[str, np.ndarray], weights: np.ndarray, chunk: int, chunks: int | None = None) -> Rows:
    """Cut columns into chunks; `chunks` pads to a common number of them."""
    n = len(weights)
    count = -(-n // chunk)
    total = (chunks or count) * chunk
    place = np.minimum(np.arange(total), n - 1)
    fields = {name: column[place].reshape(-1, chunk, *column.shape[1:]) for name, column in columns.items()}
    padded = np.zeros(total)
    padded[:n] = weights
    return Rows(fields, padded.reshape(-1, chunk), count)


def still(problem: Problem, params: Params, columns: Mapping[str, np.ndarray]) -> Loss:
    """The problem's loss without random numbers.

    A loss that draws none is taken as it is. One with dropout is replaced by the loss among the problem's metrics,
    which is taken without; a problem that has none there draws from the same key everywhere.
    """
    row = {name: jax.ShapeDtypeStruct((1, *a.shape[1:]), jnp.result_type(a)) for name, a in columns.items()}
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), params)
    return _still(problem, _draws(problem, shapes, row) and "loss" in jax.eval_shape(problem.metrics, shapes, row))


def _draws(problem: Problem, params: Any, row: Any) -> bool:
    jaxpr = jax.make_jaxpr(problem.loss)(params, row, jax.random.key(0)).jaxpr
    key = jaxpr.invars[-1]
    return any(v is key for equation in jaxpr.eqns for v in equation.invars if isinstance(v, Var))


@functools.lru_cache(maxsize=64)
def _still(problem: Problem, measured: bool) -> Loss:
    if measured:
        return lambda params, batch: problem.metrics(params, batch)["loss"][0]
    return lambda params, batch: problem.loss(params, batch, jax.random.key(0))


@functools.lru_cache(maxsize=64)
def programs(loss: Loss) -> Programs:
    """The compiled programs of a loss; calling again gives the same ones."""

    def total(params: Params, fields: Batch, weights: jax.Array) -> jax.Array:
        losses = loss(params, fields)
        return jnp.sum(jnp.where(weights != 0, losses, 0) * weights.astype(losses.dtype))

    def at(tree: Any, i: jax.Array) -> Any:
        return jax.tree.map(lambda a: a[i], tree)

    def gradient(params: Params, rows: Rows) -> tuple[jax.Array, jax.Array]:
        flat = ravel_pytree(params)[0]

        def add(i: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            value, grad = jax.value_and_grad(total)(params, at(rows.fields, i), rows.weights[i])
            return sums[0] + value.astype(flat.dtype), sums[1] + ravel_pytree(grad)[0]

        return lax.fori_loop(0, rows.count, add, (jnp.zeros((), flat.dtype), jnp.zeros_like(flat)))

    def scatter(params: Params, batches: Rows, mean: jax.Array) -> tuple[jax.Array, jax.Array]:
        r"""$\|g_i - \bar g\|^2$ and $\sum_k B_k \|b_k - g_i\|^2$, in one stable pass over the mini-batches $b_k$."""

        def add(k: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
            own, squares, seen = carry
            size = jnp.sum(batches.weights[k]).astype(own.dtype)
            grads = jax.grad(total)(params, at(batches.fields, k), batches.weights[k])
            new = ravel_pytree(grads)[0] / size
            seen = seen + size
            change = new - own
            own = own + (size / seen) * change
            return own, squares + size * jnp.vdot(change, new - own), seen

        zero = jnp.zeros((), mean.dtype)
        own, squares, _ = lax.fori_loop(0, batches.count, add, (jnp.zeros_like(mean), zero, zero))
        return jnp.sum((own - mean) ** 2), squares

    def hessian(params: Params, fields: Batch, weights: jax.Array, first: Any, last: Any, v: jax.Array) -> jax.Array:
        direction = ravel_pytree(params)[1](v)

        def add(i: jax.Array, sum_: jax.Array) -> jax.Array:
            def grad(p: Params) -> Params:
                return jax.grad(total)(p, at(fields, i), weights[i])

            return sum_ + ravel_pytree(jax.jvp(grad, (params,), (direction,))[1])[0]

        return lax.fori_loop(first, last, add, jnp.zeros_like(v))

    return Programs(jax.jit(gradient), jax.jit(scatter), jax.jit(hessian))
