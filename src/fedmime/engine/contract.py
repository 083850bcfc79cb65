"""The contract of a problem's functions: which shapes `loss` and `metrics` must return.

Both functions are traced with abstract arrays before any round, once for every structure of model and data. A wrong
shape is then a one-line error instead of a broadcast that trains something else or a failure in a compiled program.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedmime.engine.cohort import Columns
from fedmime.errors import ConfigError, DataError

_DECIDING = frozenset(("accuracy", "loss"))  # metrics by which models are compared


def traced_loss(problem: Any, params: Any, sample: Columns) -> Any:
    """Trace a problem's loss and check that it returns one floating-point number per example.

    A loss of shape [n, 1] would be broadcast against the weights [n] of the examples to [n, n], and train something
    else without an error.

    Args:
        problem: has `loss(params, batch, key)` and perhaps a name.
        params: the model, arrays or shapes.
        sample: columns of any number of examples, of which the shapes and types matter.

    Returns:
        The traced program (a jaxpr), from which others can see whether the loss uses random numbers.

    Raises:
        ConfigError: the loss has another shape or type. DataError: the loss asks for a field that the data does not
        have.
    """
    return _traced_loss(_name(problem), problem.loss, *_batch(params, sample))


def check_metrics(problem: Any, params: Any, sample: Columns) -> None:
    """Trace a problem's metrics and check that every metric is a pair of values [n] and weights [n].

    The arguments and errors are those of `traced_loss`. Of a problem without `_DECIDING` metrics the loss is checked.
    """
    if not _check_metrics(_name(problem), problem.metrics, *_batch(params, sample)):
        traced_loss(problem, params, sample)


def example_metrics(
    problem: Any, params: Any, batch: Mapping[str, jax.Array]
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """The value and the weight of every metric for each example.

    A problem whose metrics have neither an accuracy nor a loss is measured by its loss, too, with equal
    weights. If the loss draws random numbers, it draws them from a fixed key: metrics of its own would say what the
    model does without them.
    """
    found = problem.metrics(params, batch)
    if found.keys() & _DECIDING:
        return found
    losses = problem.loss(params, batch, jax.random.key(0))
    return {**found, "loss": (losses, jnp.ones_like(losses))}


@functools.lru_cache(maxsize=64)
def _traced_loss(name: str, loss: Callable[..., Any], n: int, tree: Any, leaves: tuple[Any, ...]) -> Any:
    """Do the work of `traced_loss`, cached by function and by what `_batch` returns."""
    params, batch = _abstract(tree, leaves)
    trace, key = jax.make_jaxpr(loss, return_shape=True), jax.eval_shape(jax.random.key, 0)
    program, found = _with_fields(name, "loss", batch, lambda: trace(params, batch, key))
    if _shape(found, n) != "[n]":
        raise ConfigError(f"{name}: loss must have shape [n], got {_shape(found, n)}; give each example its own")
    if not jnp.issubdtype(found.dtype, jnp.floating):
        raise ConfigError(f"{name}: loss must hold floating-point numbers, got {found.dtype}")
    return program


@functools.lru_cache(maxsize=64)
def _check_metrics(name: str, metrics: Callable[..., Any], n: int, tree: Any, leaves: tuple[Any, ...]) -> bool:
    """Do the work of `check_metrics`, cached by function and by what `_batch` returns; whether some are `_DECIDING`."""
    params, batch = _abstract(tree, leaves)
    found = _with_fields(name, "metrics", batch, lambda: jax.eval_shape(metrics, params, batch))
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name}: metrics must be a dict {{name: (values, weights)}}, got {type(found).__name__}")
    for metric, pair in found.items():
        shapes = [_shape(part, n) for part in pair] if isinstance(pair, tuple | list) else [_shape(pair, n)]
        if shapes != ["[n]", "[n]"]:
            wanted = "be a pair (values, weights) of shapes [n] and [n]"
            raise ConfigError(f"{name}: metrics[{metric!r}] must {wanted}, got {' and '.join(shapes)}")
    return bool(found.keys() & _DECIDING)


def _with_fields(name: str, function: str, batch: Mapping[str, Any], trace: Callable[[], Any]) -> Any:
    """The result of a trace; a `KeyError` for a missing field becomes a `DataError` that lists the fields there are."""
    try:
        return trace()
    except KeyError as error:
        there = ", ".join(map(repr, batch))
        raise DataError(f"{name}: {function} asks for {error}, which is missing; a batch has {there}") from error


def _batch(params: Any, sample: Columns) -> tuple[int, Any, tuple[Any, ...]]:
    """An abstract model and batch, in the form in which traces are cached.

    Returns:
        The number of examples n, the structure of (params, batch), and the shapes and types of its leaves. n equals no
        other dimension of the model or the data, so that it can be recognised in the shapes of results.
    """
    lengths = {length for leaf in jax.tree.leaves(params) for length in jnp.shape(leaf)}
    lengths |= {length for column in sample.values() for length in column.shape[1:]}
    n = next(n for n in itertools.count(7) if n not in lengths)
    rows = {name: jax.ShapeDtypeStruct((n, *a.shape[1:]), jnp.result_type(a)) for name, a in sample.items()}
    return n, *_hashable((params, rows))


def _shape(found: Any, n: int) -> str:
    """A shape as text for a message, with the number of examples written as n."""
    if not isinstance(found, jax.ShapeDtypeStruct):
        return f"a {type(found).__name__}"
    return f"[{', '.join('n' if length == n else str(length) for length in found.shape)}]"


def _name(problem: Any) -> str:
    """The name of a problem for messages."""
    return getattr(problem, "name", "problem")


def _hashable(tree: Any) -> tuple[Any, tuple[Any, ...]]:
    """The structure of a pytree, and the shapes and types of its leaves, as a hashable key.

    A schedule among the leaves counts as a number, because each round replaces it by its value.
    """
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(_kind(leaf) for leaf in leaves)


def _kind(leaf: Any) -> tuple[tuple[int, ...], Any]:
    """The shape and type of a leaf. Arrays come first because they are the usual case and need no conversion."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf.shape, leaf.dtype
    if callable(leaf) or type(leaf) is float:
        return (), jnp.result_type(float)
    return jnp.shape(leaf), jnp.result_type(leaf)


def _abstract(tree: Any, leaves: tuple[Any, ...]) -> Any:
    """The inverse of `_hashable`: the pytree with `jax.ShapeDtypeStruct` leaves."""
    return jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
