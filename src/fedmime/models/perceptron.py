"""Logistic regression and the multi-layer perceptron: dense layers with relu between them."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax

from fedmime.models import arguments, initialisers
from fedmime.models.classification import classifier
from fedmime.models.factors import perceptron_factors
from fedmime.models.layers import dense
from fedmime.models.problem import Params, Problem


def logistic(input_shape: Any = (28, 28, 1), classes: int = 62) -> Problem:
    """Multinomial logistic regression: cross-entropy of $W x + b$, a convex problem.

    Args:
        input_shape: shape of one example, which is flattened.
        classes: number of classes.

    >>> problem = logistic(input_shape=(28, 28, 1), classes=62)
    >>> problem is logistic()
    True
    """
    return _perceptron("logistic", *_sizes("logistic", input_shape, classes), ())


def mlp(input_shape: Any = (28, 28, 1), classes: int = 62, hidden: Any = (300, 100)) -> Problem:
    """A multi-layer perceptron: dense layers with relu after each, then a dense layer to the classes.

    Args:
        input_shape: shape of one example, which is flattened.
        classes: number of classes.
        hidden: widths of the hidden layers; `()` gives the logistic model.
    """
    return _perceptron("mlp", *_sizes("mlp", input_shape, classes), arguments.wholes("mlp", "hidden", hidden))


def _sizes(model: str, input_shape: Any, classes: Any) -> tuple[tuple[int, ...], int]:
    """The checked input shape and number of classes."""
    return arguments.shape(model, "input_shape", input_shape), arguments.classes(model, classes)


@functools.cache
def _perceptron(name: str, input_shape: tuple[int, ...], classes: int, hidden: tuple[int, ...]) -> Problem:
    """Build the problem. The same arguments return the same object, so that its compiled programs are reused."""
    widths = (math.prod(input_shape), *hidden, classes)
    depth = len(widths) - 1

    @jax.jit
    def init(key: jax.Array) -> Params:
        keys = jax.random.split(key, depth)
        return {f"dense{i}": initialisers.dense(keys[i], widths[i], widths[i + 1]) for i in range(depth)}

    def logits(params: Params, x: jax.Array, key: jax.Array | None) -> jax.Array:
        a = x.reshape(x.shape[0], -1).astype(params["dense0"]["w"].dtype)
        for i in range(depth):
            a = dense(a if i == 0 else jax.nn.relu(a), **params[f"dense{i}"])
        return a

    return classifier(name, init, logits, input_shape, classes, perceptron_factors(depth))
