r"""What rebuilds an example's gradient of the CNN without dropout.

For the dense layers their factors, as in `factors.py`. A convolution shares its small kernel between hundreds of
positions, so there the example's own kernel gradient is smaller than its factors, and is kept instead (18,816 numbers):
one for each example, or one for each mini-batch where those are known beforehand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedmime.models.factors import DenseFactors, dense_grads, dense_record, joint_grad, named, scaled
from fedmime.models.layers import conv2d, max_pool2x2, passed_on
from fedmime.models.layers.convolution import kernel_gradients
from fedmime.models.problem import Batch, Factors, Params

CONVOLUTIONS = ("conv0", "conv1")


class CnnFactors(NamedTuple):
    """Kernel gradients per example, or of a whole mini-batch, and the dense layers' first input and factors."""

    kernels: Params
    a: Any
    dense: DenseFactors


def cnn_factors() -> Factors:
    """The factors of the layers conv0, conv1, pooling, dense0, dense1 under a cross-entropy loss."""

    def record(x: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, CnnFactors]:
        images = batch["x"].astype(x["conv0"]["w"].dtype)
        shifts = _zero_shifts(x, images)
        a, pull, inner = jax.vjp(lambda shifts: _convolutions(x, images, shifts), shifts, has_aux=True)
        losses, dense = dense_record([x["dense0"], x["dense1"]], a, batch["y"])
        (d,) = pull(passed_on(dense.d[0], x["dense0"]["w"]))
        kernels = {
            name: {"w": kernel_gradients(before, d[name]), "b": d[name].sum((1, 2))}
            for name, before in zip(CONVOLUTIONS, (images, inner), strict=True)
        }
        return losses, CnnFactors(kernels, a, dense)

    def record_batch(x: Params, batch: Batch, weights: jax.Array, key: jax.Array) -> tuple[jax.Array, CnnFactors]:
        images = batch["x"].astype(x["conv0"]["w"].dtype)
        kernels = {name: x[name] for name in CONVOLUTIONS}
        a, pull, _ = jax.vjp(lambda kernels: _convolutions(kernels, images, None), kernels, has_aux=True)
        losses, dense = dense_record([x["dense0"], x["dense1"]], a, batch["y"])
        (grads,) = pull(passed_on(scaled(dense.d[0], weights), x["dense0"]["w"]))
        return losses, CnnFactors(jax.tree.map(lambda grad: grad[None], grads), a, dense)

    def mean_grad(kept: CnnFactors, batch: Batch, weights: jax.Array) -> Params:
        below = kept.kernels["conv1"]["b"]  # computed with the weights of dense0
        kernels = jax.tree.map(
            lambda each: jnp.tensordot(_shares(each, weights).astype(each.dtype), each, axes=1), kept.kernels
        )
        return kernels | named(dense_grads(kept.a, kept.dense, weights, below))

    def grad_difference(
        y: Params, batch: Batch, kept: CnnFactors | None, weights: jax.Array, scale: Any, key: jax.Array
    ) -> tuple[jax.Array, Params]:
        losses, new = record_batch(y, batch, weights, key)
        scale, below = jnp.asarray(scale, losses.dtype), new.kernels["conv1"]["b"]
        if kept is None:
            grads = jax.tree.map(lambda grad: grad[0], new.kernels)
            return losses, grads | named(dense_grads(new.a, new.dense, weights, below))
        kernels = jax.tree.map(
            lambda at_y, at_x: at_y[0] - at_x.weighted(scale * _shares(at_x.places, weights)), new.kernels, kept.kernels
        )
        pairs = zip((new.a, *new.dense.a), new.dense.d, (kept.a, *kept.dense.a), kept.dense.d, strict=True)
        dense = [
            joint_grad(*pair, before, weights=weights, scale=scale)
            for pair, before in zip(pairs, (below, new.dense.d[0]), strict=True)
        ]
        return losses, kernels | named(dense)

    return Factors(record, mean_grad, grad_difference, record_batch)


def _shares(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """The weights of rows that are examples, or of the one row that is their weighted sum already.

    A mini-batch of one example is both, and its weight is one.
    """
    return weights if len(rows) == len(weights) else jnp.ones(1, weights.dtype)


def _convolutions(params: Params, images: jax.Array, shifts: Params | None) -> tuple[jax.Array, jax.Array]:
    """The flattened pooled output, and the input of the second convolution.

    Shifts of the layers' outputs, zero in value, are there to be differentiated: their gradient is the cotangent d.
    """
    first = conv2d(images, **params["conv0"])
    inner = jax.nn.relu(first if shifts is None else first + shifts["conv0"])
    second = conv2d(inner, **params["conv1"])
    pooled = jax.nn.relu(max_pool2x2(second if shifts is None else second + shifts["conv1"]))
    return pooled.reshape(pooled.shape[0], -1), inner


def _zero_shifts(params: Params, images: jax.Array) -> Params:
    batch, height, width, _ = images.shape
    return {
        name: jnp.zeros((batch, height - cut, width - cut, params[name]["b"].size), images.dtype)
        for name, cut in zip(CONVOLUTIONS, (2, 4), strict=True)
    }
