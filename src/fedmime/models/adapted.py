"""What the adapters for flax and equinox share: optional imports, argument checks and the problem they end in."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.errors import ConfigError
from fedmime.models import arguments, checks
from fedmime.models.classification import Apply, Metrics, classifier
from fedmime.models.problem import Batch, Params, Problem

Loss = Literal["cross_entropy"] | Callable[[jax.Array, Any], jax.Array]


def extra(adapter: str, package: str) -> ModuleType:
    """Import an optional package; `ConfigError` with the command that installs it if it is missing.

    Args:
        adapter: name of the function that needs it, for the message.
        package: the module to import; the part before the first dot is the extra's name.
    """
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
    """Make a problem from a model's functions.

    Args:
        adapter: name of the user's function, for messages.
        name: name of the problem.
        init: returns new parameters for a random key.
        apply: returns the model's outputs for (params, x, key); the key is None where nothing random is wanted.
        input_shape: shape of one example.
        classes: number of classes, needed for cross-entropy only.
        loss: `"cross_entropy"`, or a function `(outputs, y) -> losses`, one per example, which is then the only metric.
    """
    shape = arguments.shape(adapter, "input_shape", input_shape)
    if isinstance(loss, str) and loss == "cross_entropy":
        return classifier(name, init, apply, shape, arguments.classes(adapter, classes))
    if isinstance(loss, str) or not callable(loss):
        raise ConfigError(f"{adapter}: loss must be 'cross_entropy' or a function (outputs, y) -> losses, got {loss!r}")

    def train(params: Params, batch: Batch, key: jax.Array | None) -> jax.Array:
        return loss(apply(params, batch["x"], key), batch["y"])

    def measure(params: Params, batch: Batch) -> Metrics:
        losses = train(params, batch, None)
        return {"loss": (losses, jnp.ones_like(losses))}

    def check(fields: Mapping[str, np.ndarray]) -> None:
        checks.same_length(name, checks.features(name, fields, shape), checks.field(name, fields, "y"))

    return Problem(name, init, train, measure, check)


def in_dtype_of(params: Params, x: jax.Array) -> jax.Array:
    """Inputs cast to the floating-point type of the parameters, so that float64 models accept float32 data."""
    kinds = [leaf.dtype for leaf in jax.tree.leaves(params) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return x.astype(kinds[0]) if kinds else x


def typed(key: jax.Array) -> jax.Array:
    """A typed random key (`jax.random.key`), also for a key given as two numbers (`jax.random.PRNGKey`)."""
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
