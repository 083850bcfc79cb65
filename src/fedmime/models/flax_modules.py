"""Problems from flax modules, both of nnx and of linen."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedmime.errors import ConfigError
from fedmime.models import arguments
from fedmime.models.adapted import Loss, adapt, extra, in_dtype_of, typed
from fedmime.models.classification import Apply
from fedmime.models.problem import Params, Problem

Parts = tuple[Callable[[jax.Array], Params], Apply]


def from_flax(
    module: Any, input_shape: Any, classes: int | None = None, loss: Loss = "cross_entropy", name: str = "flax"
) -> Problem:
    """A problem from a flax module that maps a batch of inputs "x" to logits, with integer labels "y".

    Dropout takes its masks from the key of `loss` and is off in metrics: nnx modules are put in train or eval mode;
    linen modules get `train`, `training` or `deterministic` if their `__call__` has such an argument. Modules with
    mutable state (batch normalisation) are refused: clients would have to agree on it.

    Args:
        module: an nnx module class or function `rngs -> module`, whose weights `init(key)` draws anew; an nnx module,
            whose own weights `init` returns whatever the key; or a linen module.
        input_shape: shape of one example.
        classes: number of classes; not needed with your own loss.
        loss: `"cross_entropy"`, or your own function `(outputs, y) -> losses`, one per example.
        name: name of the problem, for messages and reports.
    """
    nnx, linen = extra("from_flax", "flax.nnx"), extra("from_flax", "flax.linen")
    if isinstance(module, linen.Module):
        init, apply = _linen_parts(module, arguments.shape("from_flax", "input_shape", input_shape))
    elif isinstance(module, nnx.Module):
        init, apply = _nnx_parts(nnx, module, None)
    elif callable(module):
        init, apply = _nnx_parts(nnx, _build(nnx, module, jax.random.key(0)), module)
    else:
        raise ConfigError(f"from_flax: module must be an nnx or linen module or a function of rngs, got {module!r}")
    return adapt("from_flax", name, init, apply, input_shape, classes, loss)


def _refuse(where: str, kind: str) -> ConfigError:
    """The error for a module with mutable state of some kind at some place."""
    return ConfigError(
        f"from_flax: mutable state is not supported, got {kind} at {where!r}; use GroupNorm or LayerNorm instead"
    )


def _build(nnx: Any, factory: Callable[..., Any], key: jax.Array) -> Any:
    """Call an nnx factory with random streams, which it takes as `rngs=` or as its only argument."""
    rngs = nnx.Rngs(typed(key))
    signature = inspect.signature(factory.__init__ if isinstance(factory, type) else factory)
    module = factory(rngs=rngs) if "rngs" in signature.parameters else factory(rngs)
    if not isinstance(module, nnx.Module):
        raise ConfigError(f"from_flax: module must return an nnx module when called with rngs, got {module!r}")
    return module


def _nnx_parts(nnx: Any, module: Any, factory: Callable[..., Any] | None) -> Parts:
    """The functions `init` and `apply` of an nnx module.

    Args:
        nnx: the package.
        module: an instance, which provides the structure.
        factory: makes new instances for `init`; None returns the weights of `module`.
    """
    training, testing = nnx.clone(module), nnx.clone(module)
    training.train()
    testing.eval()
    graph, weights, rest = nnx.split(training, nnx.Param, ...)
    graph_eval, _, rest_eval = nnx.split(testing, nnx.Param, ...)
    for path, variable in nnx.to_flat_state(rest):
        if not isinstance(variable, nnx.RngState):
            raise _refuse(".".join(map(str, path)), type(variable).__name__)

    def init(key: jax.Array) -> Params:
        if factory is None:
            return nnx.to_pure_dict(weights)
        return nnx.to_pure_dict(nnx.state(_build(nnx, factory, key), nnx.Param))

    def apply(params: Params, x: jax.Array, key: jax.Array | None) -> jax.Array:
        """Outputs in train mode with random streams from the key, or in eval mode if the key is None."""
        state = jax.tree.map(lambda leaf: leaf, weights)
        nnx.replace_by_pure_dict(state, params)
        if key is None:
            model = nnx.merge(graph_eval, state, _seeded(rest_eval, jax.random.key(0)))
        else:
            model = nnx.merge(graph, state, _seeded(rest, typed(key)))
        return model(in_dtype_of(params, x))

    return init, apply


def _seeded(state: Any, key: jax.Array) -> Any:
    """The module's random streams, each restarted with a key of its own, and its counters at zero."""
    leaves, structure = jax.tree.flatten(state)
    fresh = [
        jax.random.fold_in(key, i) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jnp.zeros_like(leaf)
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, fresh)


def _linen_parts(module: Any, input_shape: tuple[int, ...]) -> Parts:
    """The functions `init` and `apply` of a linen module; its variables must all be parameters."""
    accepted = inspect.signature(type(module).__call__).parameters

    def mode(train: bool) -> dict[str, bool]:
        """The arguments by which this module is told whether it trains."""
        flags = {"train": train, "training": train, "deterministic": not train}
        return {flag: value for flag, value in flags.items() if flag in accepted}

    def variables(key: jax.Array) -> dict[str, Params]:
        """The module's variables by collection, from a random key and an example of zeros."""
        first, second = jax.random.split(key)
        return module.init({"params": first, "dropout": second}, jnp.zeros((1, *input_shape), float), **mode(False))

    for kind in jax.eval_shape(variables, jax.random.key(0)):
        if kind != "params":
            raise _refuse(kind, "a collection")

    def init(key: jax.Array) -> Params:
        return variables(key)["params"]

    def apply(params: Params, x: jax.Array, key: jax.Array | None) -> jax.Array:
        rngs = {} if key is None else {"dropout": key}
        return module.apply({"params": params}, in_dtype_of(params, x), rngs=rngs, **mode(key is not None))

    return init, apply
