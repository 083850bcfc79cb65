r"""What rebuilds an example's gradient of the CNN without dropout.

For the dense layers their factors, as in `factors.py`. A convolution shares its small kernel between hundreds of
positions, so there the example's own kernel gradient is smaller than its factors, and is kept instead (18,816 numbers).
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
    """Kernel gradients [examples, ...], and the dense layers' first input and factors."""

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

    def at(y: Params, batch: Batch, weights: jax.Array) -> tuple[jax.Array, Params, jax.Array, DenseFactors]:
        """Losses, kernel gradients summed over the mini-batch, and the dense layers' input and factors."""
        images = batch["x"].astype(y["conv0"]["w"].dtype)
        kernels = {name: y[name] for name in CONVOLUTIONS}
        a, pull, _ = jax.vjp(lambda kernels: _convolutions(kernels, images, None), kernels, has_aux=True)
        losses, dense = dense_record([y["dense0"], y["dense1"]], a, batch["y"])
        (grads,) = pull(passed_on(scaled(dense.d[0], weights), y["dense0"]["w"]))
        return losses, grads, a, dense

    def mean_grad(kept: CnnFactors, batch: Batch, weights: jax.Array) -> Params:
        kernels = jax.tree.map(lambda each: _weighted(each, weights), kept.kernels)
        below = kept.kernels["conv1"]["b"]  # computed with the weights of dense0
        return kernels | named(dense_grads(kept.a, kept.dense, weights, below))

    def grad_difference(
        y: Params, batch: Batch, kept: CnnFactors | None, weights: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Params]:
        losses, kernels, a, dense = at(y, batch, weights)
        if kept is None:
            return losses, kernels | named(dense_grads(a, dense, weights, kernels["conv1"]["b"]))
        below = (kernels["conv1"]["b"], dense.d[0])
        kernels = jax.tree.map(lambda at_y, at_x: at_y - _weighted(at_x, weights), kernels, kept.kernels)
        pairs = zip((a, *dense.a), dense.d, (kept.a, *kept.dense.a), kept.dense.d, below, strict=True)
        return losses, kernels | named([joint_grad(*pair, weights=weights) for pair in pairs])

    return Factors(record, mean_grad, grad_difference)


def _weighted(each: jax.Array, weights: jax.Array) -> jax.Array:
    """Σ wⱼ eachⱼ over the examples of each [examples, ...]."""
    return jnp.tensordot(weights.astype(each.dtype), each, axes=1)


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
