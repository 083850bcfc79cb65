"""Next-token prediction: loss and metrics of sequences with padding, one number per example."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from fedmime.models.classification import Metrics, cross_entropy

PAD = 0


def token_mean(values: jax.Array, counted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean of values [time, batch] over the counted tokens of every example (0 if none), and their number."""
    weights = counted.astype(values.dtype)
    number = weights.sum(0)
    return jnp.where(counted, values, 0.0).sum(0) / jnp.maximum(number, 1.0), number


def loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean cross-entropy over the real target tokens of every example: logits [time, batch, vocabulary]."""
    return token_mean(cross_entropy(logits, targets), targets != PAD)[0]


def metrics(logits: jax.Array, targets: jax.Array, ignore: tuple[int, ...]) -> Metrics:
    """Accuracy over the targets not in `ignore`, loss over all real ones; both weigh an example by its tokens."""
    correct = (jnp.argmax(logits, axis=-1).astype(targets.dtype) == targets).astype(logits.dtype)
    ignored = functools.reduce(jnp.logical_or, (targets == token for token in ignore))
    return {
        "accuracy": token_mean(correct, ~ignored),
        "loss": token_mean(cross_entropy(logits, targets), targets != PAD),
    }
