"""Factors of the CNN without dropout: what rebuilds the gradient of an example at a fixed point.

For the dense layers these are inputs and cotangents, as in `factors.py`. A convolution shares its small kernel between
hundreds of positions, so that an example's kernel gradient (18,816 numbers for both layers) is smaller than the inputs
and cotangents it is made of, and is recorded instead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedmime.kernels import ops
from fedmime.models.factors import DenseFactors, dense_grads, dense_record, joint_grad, named, scaled
from fedmime.models.layers import conv2d, max_pool2x2
from fedmime.models.problem import Batch, Factors, Params

CONVOLUTIONS = ("conv0", "conv1")
VALID = ((0, 0), (0, 0))  # no padding


class CnnFactors(NamedTuple):
    """What is recorded of each example at the fixed point x.

    Attributes:
        kernels: gradients of kernels and biases of both convolutions, each [examples, ...].
        a: input of the first dense layer [examples, in].
        dense: factors of the dense layers.
    """

    kernels: Params
    a: Any
    dense: DenseFactors


def cnn_factors() -> Factors:
    """The factors of the layers conv0, conv1, pooling, dense0 and dense1 under cross-entropy; see `Factors`."""

    def record(x: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, CnnFactors]:
        """Losses and factors at x; the weights of the examples are not known yet, so nothing is summed."""
        images = batch["x"].astype(x["conv0"]["w"].dtype)
        shifts = _zero_shifts(x, images)
        a, pull, inner = jax.vjp(lambda shifts: _convolutions(x, images, shifts), shifts, has_aux=True)
        losses, dense = dense_record([x["dense0"], x["dense1"]], a, batch["y"])
        (d,) = pull(dense.d[0] @ x["dense0"]["w"])
        kernels = {
            name: {"w": ops.kernel_gradients(before, d[name], VALID), "b": d[name].sum((1, 2))}
            for name, before in zip(CONVOLUTIONS, (images, inner), strict=True)
        }
        return losses, CnnFactors(kernels, a, dense)

    def mean_grad(factors: CnnFactors, batch: Batch, weights: jax.Array) -> Params:
        """The weighted sum of the examples' gradients at x."""
        kernels = jax.tree.map(lambda each: _weighted(each, weights), factors.kernels)
        below = factors.kernels["conv1"]["b"]  # computed with the weights of dense0
        return kernels | named(dense_grads(factors.a, factors.dense, weights, below))

    def grad_difference(
        y: Params, batch: Batch, factors: CnnFactors | None, weights: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Params]:
        """Losses at y, and the weighted sum of the gradients at y minus those at x, whose factors are given, if any."""
        images = batch["x"].astype(y["conv0"]["w"].dtype)
        kernels = {name: y[name] for name in CONVOLUTIONS}
        a, pull, _ = jax.vjp(lambda kernels: _convolutions(kernels, images, None), kernels, has_aux=True)
        losses, dense = dense_record([y["dense0"], y["dense1"]], a, batch["y"])
        (kernels,) = pull(scaled(dense.d[0], weights) @ y["dense0"]["w"])  # their gradients
        if factors is None:
            return losses, kernels | named(dense_grads(a, dense, weights, kernels["conv1"]["b"]))
        below = (kernels["conv1"]["b"], dense.d[0])
        kernels = jax.tree.map(lambda at_y, at_x: at_y - _weighted(at_x, weights), kernels, factors.kernels)
        pairs = zip((a, *dense.a), dense.d, (factors.a, *factors.dense.a), factors.dense.d, below, strict=True)
        return losses, kernels | named([joint_grad(*pair, weights=weights) for pair in pairs])

    return Factors(record, mean_grad, grad_difference)


def _weighted(each: jax.Array, weights: jax.Array) -> jax.Array:
    """The weighted sum Σ wⱼ eachⱼ over the first axis of an array [examples, ...]."""
    return jnp.tensordot(weights.astype(each.dtype), each, axes=1)


def _convolutions(params: Params, images: jax.Array, shifts: Params | None) -> tuple[jax.Array, jax.Array]:
    """The pooled and flattened output of the convolutions [examples, features], and the input of the second one.

    Args:
        shifts: arrays of zeros that are added to the outputs of the two convolutions, or None. They do not change the
            values; their gradients are the cotangents d of the outputs, for each example separately.
    """
    first = conv2d(images, **params["conv0"])
    inner = jax.nn.relu(first if shifts is None else first + shifts["conv0"])
    second = conv2d(inner, **params["conv1"])
    pooled = jax.nn.relu(max_pool2x2(second if shifts is None else second + shifts["conv1"]))
    return pooled.reshape(pooled.shape[0], -1), inner


def _zero_shifts(params: Params, images: jax.Array) -> Params:
    """Zeros of the shapes of both convolutions' outputs; each convolution takes 2 off height and width."""
    batch, height, width, _ = images.shape
    return {
        name: jnp.zeros((batch, height - cut, width - cut, params[name]["b"].size), images.dtype)
        for name, cut in zip(CONVOLUTIONS, (2, 4), strict=True)
    }
