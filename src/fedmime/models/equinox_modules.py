"""Problems from equinox modules."""

from __future__ import annotations

import inspect
from typing import Any

import jax

from fedmime.errors import ConfigError
from fedmime.models.adapted import Loss, adapt, extra, in_dtype_of, typed
from fedmime.models.problem import Params, Problem


def from_equinox(
    module: Any, input_shape: Any, classes: int | None = None, loss: Loss = "cross_entropy", name: str = "equinox"
) -> Problem:
    """A problem from an equinox module that maps one input "x" (no batch axis) to logits, with integer labels "y".

    The parameters are the module's float arrays, as the module-shaped pytree of `equinox.partition`. If the module's
    `__call__` takes a `key`, each example gets its own, split from the key of `loss`. Metrics use the module in
    inference mode. Modules with state (`equinox.nn.BatchNorm`) are refused: clients would have to agree on it.

    Args:
        module: a function `key -> module`, whose weights `init(key)` draws anew, or a module, whose own weights `init`
            returns whatever the key.
        input_shape: shape of one example.
        classes: number of classes; not needed with your own loss.
        loss: `"cross_entropy"`, or your own function `(outputs, y) -> losses`, one per example.
        name: name of the problem, for messages and reports.
    """
    eqx = extra("from_equinox", "equinox")
    factory = None if isinstance(module, eqx.Module) else module
    if not callable(module):
        raise ConfigError(f"from_equinox: module must be an equinox module or a function of a key, got {module!r}")
    model = module if factory is None else factory(jax.random.key(0))
    _refuse_state(eqx, model)
    weights, rest = eqx.partition(model, eqx.is_inexact_array)
    resting = eqx.partition(eqx.nn.inference_mode(model), eqx.is_inexact_array)[1]
    takes_key = "key" in inspect.signature(type(model).__call__).parameters

    def init(key: jax.Array) -> Params:
        return weights if factory is None else eqx.partition(factory(typed(key)), eqx.is_inexact_array)[0]

    def apply(params: Params, x: jax.Array, key: jax.Array | None) -> jax.Array:
        x = in_dtype_of(params, x)
        if key is None or not takes_key:
            return jax.vmap(eqx.combine(params, resting if key is None else rest))(x)
        call = eqx.combine(params, rest)
        return jax.vmap(lambda one, k: call(one, key=k))(x, jax.random.split(key, x.shape[0]))

    return adapt("from_equinox", name, init, apply, input_shape, classes, loss)


def _refuse_state(eqx: Any, model: Any) -> None:
    """Raise `ConfigError` if this is not an equinox module, or one with mutable state."""
    if not isinstance(model, eqx.Module):
        raise ConfigError(f"from_equinox: module must return an equinox module when called with a key, got {model!r}")

    def stateful(node: Any) -> bool:
        return isinstance(node, eqx.nn.StateIndex)

    if any(map(stateful, jax.tree.leaves(model, is_leaf=stateful))):
        where = type(model).__name__
        raise ConfigError(f"from_equinox: mutable state is not supported, got {where}; use GroupNorm or LayerNorm")
