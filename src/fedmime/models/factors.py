r"""Gradients of dense layers, recorded for each example as their two factors.

The weight gradient of a dense layer is $\sum_j w_j\, d_j a_j^\top$ with the input $a_j$ and output cotangent $d_j$ of
each example. Mime's local steps need gradients at the fixed point x again and again. Keeping (a, d) at x instead of
computing them anew lets a step at y form both terms of $\nabla f(y) - \nabla f(x)$ in the same product,
$[w d_y; -w d_x]^\top [a_y; a_x]$. The input of the first layer is the batch itself, the same at x and y: it is not
recorded, and the product is as small as that of a single gradient, $(w (d_y - d_x))^\top a$.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedmime.kernels.lazy import outer
from fedmime.models.classification import cotangent, cross_entropy
from fedmime.models.layers import dense
from fedmime.models.problem import Batch, Factors, Params

Layer = dict[str, Any]


class DenseFactors(NamedTuple):
    """The factors of a stack of dense layers.

    Attributes:
        a: inputs of all layers but the first, each [examples, in].
        d: output cotangents of all layers, each [examples, out].
    """

    a: tuple[jax.Array, ...]
    d: tuple[jax.Array, ...]


def perceptron_factors(depth: int) -> Factors:
    """The factors of `depth` dense layers "dense0", "dense1", ... with relu between them, under cross-entropy."""

    def record(x: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, DenseFactors]:
        """Losses and factors at x. The key is not used: the model has no random numbers."""
        layers = [x[f"dense{i}"] for i in range(depth)]
        return dense_record(layers, _inputs(batch, layers[0]["b"].dtype), batch["y"])

    def mean_grad(factors: DenseFactors, batch: Batch, weights: jax.Array) -> Params:
        """The weighted sum of the examples' gradients at x."""
        return named(dense_grads(_inputs(batch, factors.d[0].dtype), factors, weights))

    def grad_difference(
        y: Params, batch: Batch, factors: DenseFactors | None, weights: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Params]:
        """Losses at y, and the weighted sum of the gradients at y minus those at x, whose factors are given, if any."""
        losses, new = record(y, batch, key)
        if factors is None:
            return losses, mean_grad(new, batch, weights)
        first = layer_grad(scaled(new.d[0] - factors.d[0], weights), _inputs(batch, losses.dtype))
        pairs = zip(new.a, new.d[1:], factors.a, factors.d[1:], new.d[:-1], strict=True)
        return losses, named([first, *(joint_grad(*pair, weights=weights) for pair in pairs)])

    return Factors(record, mean_grad, grad_difference)


def dense_record(layers: Sequence[Layer], a: jax.Array, labels: jax.Array) -> tuple[jax.Array, DenseFactors]:
    r"""Losses and factors of dense layers with relu between them.

    Back-propagation is written out: $d_L = \mathrm{softmax}(z_L) - e_y$ and $d_{l-1} = (d_l W_l) \odot [a_l > 0]$.
    Autodiff would return weight gradients, which are sums over the examples, and not the factors.

    Args:
        layers: parameters "w" and "b" of each layer.
        a: input of the first layer [examples, in].
        labels: [examples].
    """
    z, inputs = dense(a, **layers[0]), [a]
    for layer in layers[1:]:
        inputs.append(jax.nn.relu(z))
        z = dense(inputs[-1], **layer)
    d = [cotangent(z, labels)]
    for layer, used in zip(layers[:0:-1], inputs[:0:-1], strict=True):
        d.append(jnp.where(used > 0, d[-1] @ layer["w"], 0.0))
    return cross_entropy(z, labels), DenseFactors(tuple(inputs[1:]), tuple(d[::-1]))


def named(layers: Sequence[Layer]) -> Params:
    """Layers as the dictionary that a model has: "dense0", "dense1", ..."""
    return {f"dense{i}": layer for i, layer in enumerate(layers)}


def scaled(d: jax.Array, weights: jax.Array) -> jax.Array:
    """The rows of d [examples, out], each times the weight of its example [examples]."""
    return d * weights[:, None].astype(d.dtype)


def dense_grads(a: jax.Array, factors: DenseFactors, weights: jax.Array, *below: jax.Array) -> list[Layer]:
    """The gradients of dense layers applied to a; `below` is the cotangent of a, where it was computed."""
    cotangents = [below, *((d,) for d in factors.d)]
    layers = zip(factors.d, (a, *factors.a), cotangents, strict=False)
    return [layer_grad(scaled(d, weights), inputs, before) for d, inputs, before in layers]


def layer_grad(d: jax.Array, a: jax.Array, below: tuple[jax.Array, ...] = ()) -> Layer:
    """The gradient of a dense layer from its weighted cotangents [examples, out] and its inputs [examples, in].

    `below`: cotangents of the input, which were computed with the layer's weights; see `kernels.lazy.Sum`.
    """
    return {"w": outer(d, a, below), "b": d.sum(0)}


def joint_grad(
    a_y: jax.Array, d_y: jax.Array, a_x: jax.Array, d_x: jax.Array, below: jax.Array, weights: jax.Array
) -> Layer:
    """The gradient of a dense layer at y minus the one at x, in one product over both sets of rows."""
    d = jnp.concatenate([scaled(d_y, weights), scaled(-d_x, weights)])
    return layer_grad(d, jnp.concatenate([a_y, a_x]), (below,))


def _inputs(batch: Batch, dtype: Any) -> jax.Array:
    """The batch's examples, flattened to [examples, in] and cast to a floating-point type."""
    return batch["x"].reshape(batch["x"].shape[0], -1).astype(dtype)
