r"""Gradients of dense layers kept per example as their two factors.

The weight gradient of a dense layer is $\sum_j w_j\, d_j a_j^\top$ with input a and output cotangent d of each example.
Keeping (a, d) at x instead of the gradient lets a step at y form both terms of $\nabla f(y) - s \nabla f(x)$ in the
same product, $[w d_y; -s\, w d_x]^\top [a_y; a_x]$. Where the input is the batch itself it is not kept, and the product
is as small as that of a plain gradient: $(w (d_y - s\, d_x))^\top a$.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedmime import native
from fedmime.dual import Dual
from fedmime.models.classification import loss_and_cotangent
from fedmime.models.layers import OuterSum, Rows, dense, passed_on
from fedmime.models.problem import Batch, Factors, Params

Layer = dict[str, Any]


class DenseFactors(NamedTuple):
    """Inputs and output cotangents of dense layers, each [examples, width]; the first input is left out of `a`."""

    a: tuple[Any, ...]  # arrays, or rows of what was kept
    d: tuple[Any, ...]
    z: tuple[Any, ...] = ()  # the first layer's products with its input, where they are worth keeping


def perceptron_factors(depth: int, dual: bool = False) -> Factors:
    """The factors of `depth` dense layers "dense0", ... with relu between them, under a cross-entropy loss.

    `dual`: whether the first layer's weights are worth keeping in dual form.
    """

    def opened(y: Params, batch: Batch) -> tuple[list[Layer], jax.Array]:
        layers = [y[f"dense{i}"] for i in range(depth)]
        return layers, _inputs(batch, layers[0]["b"].dtype)

    def record(x: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, DenseFactors]:
        layers, a = opened(x, batch)
        z = dense(a, layers[0]["w"])
        losses, factors = dense_record(layers, a, batch["y"], z + layers[0]["b"])
        return losses, factors._replace(z=(z,) if dual and native.usable(z) else ())

    def record_at(y: Params, batch: Batch, kept: DenseFactors | None) -> tuple[jax.Array, DenseFactors]:
        """At a y whose first weights may be in dual form."""
        layers, a = opened(y, batch)
        w, first = layers[0]["w"], None
        if kept is not None and isinstance(w, Dual):
            first = w.outputs(kept.z[0].taken()) + layers[0]["b"]
        return dense_record(layers, a, batch["y"], first)

    def mean_grad(kept: DenseFactors, batch: Batch, weights: jax.Array) -> Params:
        return named(dense_grads(_inputs(batch, kept.d[0].dtype), kept, weights))

    def grad_difference(
        y: Params, batch: Batch, kept: DenseFactors | None, weights: jax.Array, scale: Any, key: jax.Array
    ) -> tuple[jax.Array, Params]:
        losses, new = record_at(y, batch, kept)
        if kept is None:
            return losses, mean_grad(new, batch, weights)
        scale = jnp.asarray(scale, losses.dtype)
        first = layer_grad(scaled(new.d[0] - scale * kept.d[0].taken(), weights), _inputs(batch, losses.dtype))
        pairs = zip(new.a, new.d[1:], kept.a, kept.d[1:], new.d[:-1], strict=True)
        rest = [joint_grad(*pair, weights=weights, scale=scale) for pair in pairs]
        return losses, named([first, *rest])

    return Factors(record, mean_grad, grad_difference, first=("x", "dense0") if dual else None)


def dense_record(
    layers: Sequence[Layer], a: jax.Array, labels: jax.Array, first: jax.Array | None = None
) -> tuple[jax.Array, DenseFactors]:
    r"""Losses and factors of dense layers, relu between them, applied to a [examples, in].

    `first`: the outputs of the first of them, if they are known.

    Back-propagation by hand: $d_L = \mathrm{softmax}(z_L) - e_y$, $d_{l-1} = (d_l W_l) \odot [a_l > 0]$.
    """
    z, inputs = dense(a, **layers[0]) if first is None else first, [a]
    for layer in layers[1:]:
        inputs.append(jax.nn.relu(z))
        z = dense(inputs[-1], **layer)
    losses, last = loss_and_cotangent(z, labels)
    d = [last]
    for layer, used in zip(layers[:0:-1], inputs[:0:-1], strict=True):
        d.append(jnp.where(used > 0, passed_on(d[-1], layer["w"]), 0.0))
    return losses, DenseFactors(tuple(inputs[1:]), tuple(d[::-1]))


def named(layers: Sequence[Layer]) -> Params:
    """Dense layers by their names in a model: "dense0", ..."""
    return {f"dense{i}": layer for i, layer in enumerate(layers)}


def scaled(d: jax.Array, weights: jax.Array) -> jax.Array:
    """Every example's row times its weight."""
    return d * weights[:, None].astype(d.dtype)


def dense_grads(a: jax.Array, factors: DenseFactors, weights: jax.Array, *below: jax.Array) -> list[Layer]:
    """The gradients of layers applied to a; `below` is the cotangent of a itself, if it was computed."""
    after = [below, *((d,) for d in factors.d)]
    layers = zip(factors.d, (a, *factors.a), after, strict=False)
    return [layer_grad(scaled(d, weights), inputs, before) for d, inputs, before in layers]


def layer_grad(d: jax.Array, a: jax.Array, below: tuple[jax.Array, ...] = ()) -> Layer:
    """The gradient of a dense layer from its weighted cotangents and its inputs; `below`: what d was passed on to."""
    return {"w": OuterSum(d, a, below), "b": d.sum(0)}


def joint_grad(
    a_y: jax.Array, d_y: jax.Array, a_x: Rows, d_x: Rows, below: jax.Array, weights: jax.Array, scale: jax.Array
) -> Layer:
    """The gradient of a dense layer at y minus `scale` times that at x, in one product; `below` as above."""
    d, kept = scaled(d_y, weights), scaled(-scale * d_x.taken(), weights)
    return {"w": OuterSum(d, a_y, (below,), (kept, a_x)), "b": d.sum(0) + kept.sum(0)}


def _inputs(batch: Batch, dtype: Any) -> jax.Array:
    return batch["x"].reshape(batch["x"].shape[0], -1).astype(dtype)
