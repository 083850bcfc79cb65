"""What a problem's functions must return: found out by tracing them once for every kind of data, before any round."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.engine.kinds import abstract, hashable
from fedmime.errors import ConfigError, DataError

Columns = Mapping[str, np.ndarray]


def traced_loss(problem: Any, params: Any, sample: Columns) -> Any:
    """The program of a problem's loss for examples like those of `sample`, once it is known to have shape [n].

    A loss [n, 1] would be broadcast against the weights [n] of its examples, and train something else.
    """
    return _traced_loss(_name(problem), problem.loss, *_batch(params, sample))


def check_metrics(problem: Any, params: Any, sample: Columns) -> None:
    """Check that every metric is a pair of values [n] and weights [n]."""
    _check_metrics(_name(problem), problem.metrics, *_batch(params, sample))


@functools.lru_cache(maxsize=64)
def _traced_loss(name: str, loss: Callable[..., Any], n: int, tree: Any, leaves: tuple[Any, ...]) -> Any:
    params, batch = abstract(tree, leaves)
    trace = jax.make_jaxpr(loss, return_shape=True)
    program, found = _with_fields(name, "loss", batch, lambda: trace(params, batch, jax.random.key(0)))
    if _shape(found, n) != "[n]":
        raise ConfigError(f"{name}: loss must have shape [n], got {_shape(found, n)}; give each example its own")
    if not jnp.issubdtype(found.dtype, jnp.floating):
        raise ConfigError(f"{name}: loss must hold floating-point numbers, got {found.dtype}")
    return program


@functools.lru_cache(maxsize=64)
def _check_metrics(name: str, metrics: Callable[..., Any], n: int, tree: Any, leaves: tuple[Any, ...]) -> None:
    params, batch = abstract(tree, leaves)
    found = _with_fields(name, "metrics", batch, lambda: jax.eval_shape(metrics, params, batch))
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name}: metrics must be a dict {{name: (values, weights)}}, got {type(found).__name__}")
    for metric, pair in found.items():
        shapes = [_shape(part, n) for part in pair] if isinstance(pair, tuple | list) else [_shape(pair, n)]
        if shapes != ["[n]", "[n]"]:
            wanted = "be a pair (values, weights) of shapes [n] and [n]"
            raise ConfigError(f"{name}: metrics[{metric!r}] must {wanted}, got {' and '.join(shapes)}")


def _with_fields(name: str, function: str, batch: Mapping[str, Any], trace: Callable[[], Any]) -> Any:
    """What tracing gives; a field that is not there is named with those that are."""
    try:
        return trace()
    except KeyError as error:
        there = ", ".join(map(repr, batch))
        raise DataError(f"{name}: {function} asks for {error}, which is missing; a batch has {there}") from error


def _batch(params: Any, sample: Columns) -> tuple[int, Any, tuple[Any, ...]]:
    """A model and a batch by their shapes, and a number of examples that is no other length of theirs."""
    lengths = {length for leaf in jax.tree.leaves(params) for length in jnp.shape(leaf)}
    lengths |= {length for column in sample.values() for length in column.shape[1:]}
    n = next(n for n in itertools.count(7) if n not in lengths)
    rows = {name: jax.ShapeDtypeStruct((n, *a.shape[1:]), jnp.result_type(a)) for name, a in sample.items()}
    return n, *hashable((params, rows))


def _shape(found: Any, n: int) -> str:
    """A shape in which the number of examples is called n."""
    if not isinstance(found, jax.ShapeDtypeStruct):
        return f"a {type(found).__name__}"
    return f"[{', '.join('n' if length == n else str(length) for length in found.shape)}]"


def _name(problem: Any) -> str:
    return getattr(problem, "name", "problem")
