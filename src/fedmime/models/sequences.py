"""Next-token prediction: loss and metrics of padded sequences, one number per example.

Time is the first axis of all arrays here, as the LSTM layers have it.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from fedmime.models.classification import Metrics, cross_entropy

PAD = 0  # the token that fills up short sequences


def token_mean(values: jax.Array, counted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean of values over the counted tokens of every example, 0 for an example without any.

    Args:
        values: [time, batch].
        counted: booleans [time, batch].

    Returns:
        Means [batch], and the number of counted tokens [batch], by which an example is weighed.
    """
    weights = counted.astype(values.dtype)
    number = weights.sum(0)
    return jnp.where(counted, values, 0.0).sum(0) / jnp.maximum(number, 1.0), number


def loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean cross-entropy over the real target tokens of every example [batch].

    Args:
        logits: [time, batch, vocabulary].
        targets: [time, batch]; `PAD` marks padding.
    """
    return token_mean(cross_entropy(logits, targets), targets != PAD)[0]


def metrics(logits: jax.Array, targets: jax.Array, ignore: tuple[int, ...]) -> Metrics:
    """Accuracy over the targets that are not in `ignore`, and loss over all real targets.

    Both weigh an example by its number of counted tokens, so that they are means over tokens.
    """
    correct = (jnp.argmax(logits, axis=-1).astype(targets.dtype) == targets).astype(logits.dtype)
    ignored = functools.reduce(jnp.logical_or, (targets == token for token in ignore))
    return {
        "accuracy": token_mean(correct, ~ignored),
        "loss": token_mean(cross_entropy(logits, targets), targets != PAD),
    }
