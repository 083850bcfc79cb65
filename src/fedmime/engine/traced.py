"""What is found out about a problem or an algorithm by tracing it, once for every kind of data."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Var

from fedmime.algorithms.algorithm import Algorithm
from fedmime.engine.cohort import Columns
from fedmime.engine.contract import traced_loss
from fedmime.engine.gradients import LossProblem, kept_tables
from fedmime.engine.kinds import abstract, hashable
from fedmime.engine.plan import Sizes


def uses_key(problem: LossProblem, params: Any, sample: Columns) -> bool:
    """Whether the loss draws random numbers, found out by tracing it once per kind of batch."""
    jaxpr = traced_loss(problem, params, sample).jaxpr
    key = jaxpr.invars[-1]
    return any(v is key for equation in jaxpr.eqns for v in equation.invars if isinstance(v, Var))


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
def _server_structure(tree: Any, leaves: tuple[Any, ...]) -> Any:
    return jax.tree.structure(jax.eval_shape(lambda pair: pair[0].start(pair[1]), abstract(tree, leaves)))


@functools.lru_cache(maxsize=64)
def _anchored(tree: Any, leaves: tuple[Any, ...]) -> bool:
    def found(given: tuple[Algorithm, Any]) -> None:
        algorithm, server = given
        points = algorithm.points(server)
        anchor = algorithm.anchor(algorithm.broadcast(server, points))
        answers.append(any(anchor is point for point in points))

    answers: list[bool] = []
    jax.eval_shape(found, abstract(tree, leaves))
    return answers[0]


@functools.lru_cache(maxsize=64)
def _lent_tables(
    problem: LossProblem, control: str, tree: Any, leaves: tuple[Any, ...], row: Any, sizes: Sizes, chunk: int
) -> Any:
    fields = {name: jax.ShapeDtypeStruct(*kind) for name, kind in row}
    return kept_tables(problem, control, abstract(tree, leaves), fields, sizes, chunk)
