"""Classification with integer labels: cross-entropy and accuracy, one number per example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.kernels import ops
from fedmime.models import checks
from fedmime.models.problem import Batch, Factors, Params, Problem

Metrics = dict[str, tuple[jax.Array, jax.Array]]
Apply = Callable[[Params, jax.Array, jax.Array | None], jax.Array]


def one_hot(labels: jax.Array, classes: int) -> jax.Array:
    """Booleans [..., classes], true at the label."""
    return labels[..., None] == jnp.arange(classes, dtype=labels.dtype)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    r"""$\log\sum_k e^{z_k} - z_y$ for logits z [..., classes] and integer labels y [...].

    The label's logit is picked by a mask and not by a gather, whose gradient would be a scatter.
    """
    picked = jnp.where(one_hot(labels, logits.shape[-1]), logits, 0.0).sum(-1)
    return jax.nn.logsumexp(logits, axis=-1) - picked


def loss_and_cotangent(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""The cross-entropy of each row of z [n, classes], and its derivative $\mathrm{softmax}(z) - e_y$ [n, classes]."""
    return ops.cross_entropy(logits, labels)


def metrics(logits: jax.Array, labels: jax.Array) -> Metrics:
    """Accuracy and loss; every example weighs one."""
    correct = (jnp.argmax(logits, axis=-1).astype(labels.dtype) == labels).astype(logits.dtype)
    ones = jnp.ones_like(correct)
    return {"accuracy": (correct, ones), "loss": (cross_entropy(logits, labels), ones)}


def classifier(
    name: str,
    init: Callable[[jax.Array], Params],
    apply: Apply,
    input_shape: tuple[int, ...],
    classes: int,
    factors: Factors | None = None,
) -> Problem:
    """The problem of a model `apply(params, x, key) -> logits`; the key is None when nothing random is wanted."""

    def loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        return cross_entropy(apply(params, batch["x"], key), batch["y"])

    def measure(params: Params, batch: Batch) -> Metrics:
        return metrics(apply(params, batch["x"], None), batch["y"])

    def check(fields: Mapping[str, np.ndarray]) -> None:
        checks.labelled(name, fields, input_shape, classes)

    return Problem(name, init, loss, measure, check, factors)


def predictor(
    name: str,
    init: Callable[[jax.Array], Params],
    apply: Apply,
    input_shape: tuple[int, ...],
    loss: Callable[[jax.Array, Any], jax.Array],
) -> Problem:
    """As `classifier`, with your own `loss(outputs, y) -> losses per example`; the only metric is that loss."""

    def train(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        return loss(apply(params, batch["x"], key), batch["y"])

    def measure(params: Params, batch: Batch) -> Metrics:
        losses = loss(apply(params, batch["x"], None), batch["y"])
        return {"loss": (losses, jnp.ones_like(losses))}

    def check(fields: Mapping[str, np.ndarray]) -> None:
        checks.same_length(name, checks.features(name, fields, input_shape), checks.field(name, fields, "y"))

    return Problem(name, init, train, measure, check)
