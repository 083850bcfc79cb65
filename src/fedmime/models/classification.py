"""Classification with integer labels: cross-entropy and accuracy, one number per example."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.models import checks
from fedmime.models.problem import Batch, Factors, Params, Problem

Metrics = dict[str, tuple[jax.Array, jax.Array]]
Apply = Callable[[Params, jax.Array, jax.Array | None], jax.Array]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    r"""The cross-entropy $\log\sum_k e^{z_k} - z_y$ for logits z [..., classes] and integer labels y [...].

    The label's logit is selected by a mask. A gather would be shorter to write, but its gradient is a scatter, which is
    slow on a CPU.
    """
    picked = jnp.where(_one_hot(logits, labels), logits, 0.0).sum(-1)
    return jax.nn.logsumexp(logits, axis=-1) - picked


def cotangent(logits: jax.Array, labels: jax.Array) -> jax.Array:
    r"""The derivative of the cross-entropy with respect to the logits, $\mathrm{softmax}(z) - e_y$ [..., classes]."""
    softmax = jnp.exp(logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True))  # shares the sum with the loss
    return softmax - _one_hot(logits, labels).astype(logits.dtype)


def _one_hot(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Booleans of the shape of the logits that are true at the label; a label that is no class is true nowhere."""
    return labels[..., None] == jnp.arange(logits.shape[-1], dtype=labels.dtype)


def metrics(logits: jax.Array, labels: jax.Array) -> Metrics:
    """Accuracy and loss of logits [n, classes], as pairs of values [n] and weights [n], which are one."""
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
    """The problem of a classifier under cross-entropy, with the fields "x" and "y".

    Args:
        name: name of the problem, for messages and reports.
        init: returns new parameters for a random key.
        apply: returns logits [n, classes] for (params, x, key); the key is None in evaluations, where nothing random is
            wanted.
        input_shape: shape of one example.
        classes: number of classes.
        factors: how gradients at a fixed point are recorded, for models that can; see `Factors`.
    """

    def loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        return cross_entropy(apply(params, batch["x"], key), batch["y"])

    def measure(params: Params, batch: Batch) -> Metrics:
        return metrics(apply(params, batch["x"], None), batch["y"])

    def check(fields: Mapping[str, np.ndarray]) -> None:
        checks.labelled(name, fields, input_shape, classes)

    return Problem(name, init, loss, measure, check, factors)
