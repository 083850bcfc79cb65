r"""What rebuilds an example's gradient of the CNN without dropout.

For the dense layers their factors, as in `factors.py`. A convolution shares its small kernel between hundreds of
positions, so there the example's own kernel gradient is smaller than its factors, and is kept instead (18,816 numbers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedmime.models.factors import DenseFactors, dense_grads, dense_record, joint_grad, scaled
from fedmime.models.layers import conv2d, max_pool2x2
from fedmime.models.layers.convolution import kernel_gradients
from fedmime.models.problem import Batch, Factors, Params

CONVOLUTIONS = ("conv0", "conv1")


class CnnFactors(NamedTuple):
    """Kernel gradients per example, the flattened output of the convolutions, and the factors of the dense layers."""

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
        (d,) = pull(dense.d[0] @ x["dense0"]["w"])
        kernels = {
            name: {"w": kernel_gradients(before, d[name]), "b": d[name].sum((1, 2))}
            for name, before in zip(CONVOLUTIONS, (images, inner), strict=True)
        }
        return losses, CnnFactors(kernels, a, dense)

    def mean_grad(kept: CnnFactors, batch: Batch, weights: jax.Array) -> Params:
        return _weighted(kept.kernels, weights) | _named(dense_grads(kept.a, kept.dense, weights))

    def grad_difference(
        y: Params, batch: Batch, kept: CnnFactors | None, weights: jax.Array, scale: Any, key: jax.Array
    ) -> tuple[jax.Array, Params]:
        images = batch["x"].astype(y["conv0"]["w"].dtype)
        kernels = {name: y[name] for name in CONVOLUTIONS}
        a, pull, _ = jax.vjp(lambda kernels: _convolutions(kernels, images, None), kernels, has_aux=True)
        losses, new = dense_record([y["dense0"], y["dense1"]], a, batch["y"])
        below = scaled(new.d[0], weights) @ y["dense0"]["w"]
        (grads,) = pull(below)
        if kept is None:
            return losses, grads | _named(dense_grads(a, new, weights, below))
        scale = jnp.asarray(scale, images.dtype)
        shares = scale * weights.astype(scale.dtype)
        at_x = jax.tree.map(lambda rows: rows.weighted(shares), kept.kernels)
        pairs = zip((a, *new.a), new.d, (kept.a, *kept.dense.a), kept.dense.d, (below, new.d[0]), strict=True)
        dense = [joint_grad(*pair, weights=weights, scale=scale) for pair in pairs]
        return losses, jax.tree.map(jnp.subtract, grads, at_x) | _named(dense)

    return Factors(record, mean_grad, grad_difference)


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


def _named(dense: Sequence[Params]) -> Params:
    return {f"dense{i}": layer for i, layer in enumerate(dense)}


def _weighted(per_example: Params, weights: jax.Array) -> Params:
    return jax.tree.map(lambda g: jnp.tensordot(weights.astype(g.dtype), g, axes=1), per_example)
