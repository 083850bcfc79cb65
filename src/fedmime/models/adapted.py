"""What the adapters of foreign modules share: their arguments, lazy imports and the problem they end in."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedmime.errors import ConfigError
from fedmime.models import arguments
from fedmime.models.classification import Apply, classifier, predictor
from fedmime.models.problem import Params, Problem

Loss = Literal["cross_entropy"] | Callable[[jax.Array, Any], jax.Array]


def extra(adapter: str, package: str) -> ModuleType:
    """Import an optional package, or say how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise ConfigError(f"{adapter}: {name} is an extra: pip install 'fedmime[{name}]'") from error


def adapt(
    adapter: str,
    name: str,
    init: Callable[[jax.Array], Params],
    apply: Apply,
    input_shape: Any,
    classes: Any,
    loss: Loss,
) -> Problem:
    """The problem of `apply`, under cross-entropy or the user's own loss."""
    shape = arguments.shape(adapter, "input_shape", input_shape)
    if isinstance(loss, str) and loss == "cross_entropy":
        return classifier(name, init, apply, shape, arguments.whole(adapter, "classes", classes, least=2))
    if isinstance(loss, str) or not callable(loss):
        raise ConfigError(f"{adapter}: loss must be 'cross_entropy' or a function (outputs, y) -> losses, got {loss!r}")
    return predictor(name, init, apply, shape, loss)


def in_dtype_of(params: Params, x: jax.Array) -> jax.Array:
    """Cast the inputs to the float type of the parameters."""
    kinds = [leaf.dtype for leaf in jax.tree.leaves(params) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return x.astype(kinds[0]) if kinds else x


def typed(key: jax.Array) -> jax.Array:
    """A key of the new style, whichever style came in."""
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
