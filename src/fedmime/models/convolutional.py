"""The convolutional network of the federated EMNIST literature."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax

from fedmime.errors import ConfigError
from fedmime.models import arguments, initialisers, layers
from fedmime.models.classification import classifier
from fedmime.models.convolutional_factors import cnn_factors
from fedmime.models.layers import conv2d, dense, max_pool2x2
from fedmime.models.problem import Params, Problem

CHANNELS = (32, 64)
HIDDEN = 128
CHUNK = 10  # examples of a full gradient at a time: the activations of more would not stay in a core's cache


def cnn(input_shape: Any = (28, 28, 1), classes: int = 62, dropout: Any = (0.25, 0.5)) -> Problem:
    """Two convolutions, max-pooling and two dense layers, for images.

    The convolutions are 3 x 3 with 32 and 64 channels and no padding, pooling is 2 x 2, the dense layers have 128 and
    `classes` outputs; relu follows every layer but the last. Metrics are evaluated without dropout.

    Args:
        input_shape: (height, width, channels) of an image, height and width at least 6.
        classes: number of classes.
        dropout: rates before the first and the second dense layer, or one rate for both. Only a problem without dropout
            has `factors`, which make Mime's local steps cheaper: the gradient at x must not depend on a random mask.

    Reference: Reddi et al., 2020, Adaptive Federated Optimization, https://arxiv.org/abs/2003.00295
    """
    shape = arguments.shape("cnn", "input_shape", input_shape)
    if len(shape) != 3 or min(shape[:2]) < 6:
        wanted = "(height, width, channels) with height and width of at least 6"
        raise ConfigError(f"cnn: input_shape must be {wanted}, got {input_shape!r}")
    return _cnn(shape, arguments.classes("cnn", classes), _rates(dropout))


def _rates(value: Any) -> tuple[float, float]:
    """The two dropout rates, from one number or a pair."""
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2:
        raise ConfigError(f"cnn: dropout must be one rate or two, got {value!r}")
    first, second = (arguments.probability("cnn", f"dropout[{i}]", rate) for i, rate in enumerate(pair))
    return first, second


@functools.cache
def _cnn(input_shape: tuple[int, ...], classes: int, rates: tuple[float, float]) -> Problem:
    """Build the problem. The same arguments return the same object, so that its compiled programs are reused."""
    height, width, channels = input_shape
    flat = ((height - 4) // 2) * ((width - 4) // 2) * CHANNELS[1]

    @jax.jit
    def init(key: jax.Array) -> Params:
        keys = jax.random.split(key, 4)
        return {
            "conv0": initialisers.conv(keys[0], 3, channels, CHANNELS[0]),
            "conv1": initialisers.conv(keys[1], 3, CHANNELS[0], CHANNELS[1]),
            "dense0": initialisers.dense(keys[2], flat, HIDDEN),
            "dense1": initialisers.dense(keys[3], HIDDEN, classes),
        }

    def logits(params: Params, x: jax.Array, key: jax.Array | None) -> jax.Array:
        a = jax.nn.relu(conv2d(x.astype(params["conv0"]["w"].dtype), **params["conv0"]))
        # relu commutes with max-pooling, in values and gradients; after it there is a quarter of the elements.
        a = jax.nn.relu(max_pool2x2(conv2d(a, **params["conv1"])))
        keys = (None, None) if key is None else jax.random.split(key)
        a = _drop(a.reshape(a.shape[0], -1), rates[0], keys[0])
        a = jax.nn.relu(dense(a, **params["dense0"]))
        return dense(_drop(a, rates[1], keys[1]), **params["dense1"])

    factors = cnn_factors() if rates == (0.0, 0.0) else None
    return dataclasses.replace(classifier("cnn", init, logits, input_shape, classes, factors), chunk=CHUNK)


def _drop(a: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Dropout, or the activations unchanged where there is no key (evaluation)."""
    return a if key is None else layers.dropout(a, rate, key)
