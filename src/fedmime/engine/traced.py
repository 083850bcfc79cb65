"""What is found out about a problem or an algorithm by tracing it, once for every kind of data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Var

from fedmime.algorithms.algorithm import Algorithm
from fedmime.engine.cohort import Columns
from fedmime.engine.gradients import LossProblem, kept_tables
from fedmime.engine.plan import Sizes


def uses_key(problem: LossProblem, params: Any, sample: Columns) -> bool:
    """Whether the loss draws random numbers, found out by tracing it once per kind of batch."""
    row = {name: jax.ShapeDtypeStruct((1, *a.shape[1:]), jnp.result_type(a)) for name, a in sample.items()}
    return _uses_key(problem.loss, *hashable((params, row)))


def server_structure(algorithm: Algorithm, x: Any) -> Any:
    """How the server state of an algorithm is built around a model."""
    return _server_structure(*hashable((algorithm, x)))


def anchored(algorithm: Algorithm, server: Any) -> bool:
    """Whether an algorithm's local steps need gradients at a point at which a full gradient is taken, too."""
    if type(algorithm).anchor is Algorithm.anchor:  # it names none
        return False
    return _anchored(*hashable((algorithm, server)))


def lent_tables(problem: LossProblem, control: str, params: Any, sample: Columns, sizes: Sizes, chunk: int) -> Any:
    """The shapes of a device's tables of what is kept of the full gradient; see `gradients.kept_tables`."""
    row = tuple((name, (a.shape[1:], jnp.result_type(a))) for name, a in sample.items())
    return _lent_tables(problem, control, *hashable(params), row, sizes, chunk)


@functools.lru_cache(maxsize=64)
def _uses_key(loss: Callable[..., Any], tree: Any, leaves: tuple[Any, ...]) -> bool:
    params, batch = _abstract(tree, leaves)
    jaxpr = jax.make_jaxpr(loss)(params, batch, jax.random.key(0)).jaxpr
    key = jaxpr.invars[-1]
    return any(v is key for equation in jaxpr.eqns for v in equation.invars if isinstance(v, Var))


@functools.lru_cache(maxsize=64)
def _server_structure(tree: Any, leaves: tuple[Any, ...]) -> Any:
    return jax.tree.structure(jax.eval_shape(lambda pair: pair[0].start(pair[1]), _abstract(tree, leaves)))


@functools.lru_cache(maxsize=64)
def _anchored(tree: Any, leaves: tuple[Any, ...]) -> bool:
    def found(given: tuple[Algorithm, Any]) -> None:
        algorithm, server = given
        points = algorithm.points(server)
        anchor = algorithm.anchor(algorithm.broadcast(server, points))
        answers.append(any(anchor is point for point in points))

    answers: list[bool] = []
    jax.eval_shape(found, _abstract(tree, leaves))
    return answers[0]


@functools.lru_cache(maxsize=64)
def _lent_tables(
    problem: LossProblem, control: str, tree: Any, leaves: tuple[Any, ...], row: Any, sizes: Sizes, chunk: int
) -> Any:
    fields = {name: jax.ShapeDtypeStruct(*kind) for name, kind in row}
    return kept_tables(problem, control, _abstract(tree, leaves), fields, sizes, chunk)


def hashable(tree: Any) -> tuple[Any, tuple[Any, ...]]:
    """A pytree's structure, shapes and dtypes; schedules among its leaves stand for numbers."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(_kind(leaf) for leaf in leaves)


def _kind(leaf: Any) -> tuple[tuple[int, ...], Any]:
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):  # the usual case, and fast
        return leaf.shape, leaf.dtype
    if callable(leaf) or type(leaf) is float:
        return (), jnp.result_type(float)
    return jnp.shape(leaf), jnp.result_type(leaf)


def _abstract(tree: Any, leaves: tuple[Any, ...]) -> Any:
    return jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
