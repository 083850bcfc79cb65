"""Gradients inside the compiled programs: full gradients of a lane's clients, and what they record for local steps.

A local step of Mime needs the gradient of its mini-batch at y and at the anchor x. `full_gradient` computes the full
gradient at a point in one of four ways, its argument `how`. Two of them record what local steps need of the gradient at
x:

- `None`: large chunks of the lane's examples; nothing is recorded.
- `"factors"`: the same chunks. It records of each example its loss and the factors that rebuild its gradient (see
  `fedmime.models.problem.Factors`).
- `"steps"`: the clients' mini-batches, with the random numbers of the local steps; nothing is recorded. It needs every
  example to be in exactly one mini-batch of the round.
- `"cache"`: the same mini-batches. It records the loss and the gradient of each.

If nothing was recorded at x (`None`, `"steps"`), a local step computes the second gradient itself. The back end
chooses; algorithms only ask for `Client.grad_difference`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from fedmime.engine.backends.backend import PROBE_STREAM, Problem
from fedmime.engine.backends.local.layout import Chunk, Tables, Trainee
from fedmime.kernels import ops
from fedmime.kernels.lazy import LazyVector, formed, lazy
from fedmime.vector import Vector, zeros

T = TypeVar("T")


class Examples(NamedTuple):
    """A mini-batch, or a chunk of examples, padded to a fixed width."""

    fields: Mapping[str, jax.Array]
    """Columns [width, ...]; padding repeats a real row."""
    weights: jax.Array
    """[width] weight of each example in the sum; zero for padding."""
    real: jax.Array
    """[width] false for padding."""
    key: jax.Array
    rows: jax.Array
    """[width] which of the lane's examples."""
    step: jax.Array
    """Row of the mini-batch in `Tables.rows`; for a chunk, its number."""

    def first(self, width: int) -> Examples:
        """The first rows alone; the others are padding."""
        fields = {name: column[:width] for name, column in self.fields.items()}
        return Examples(fields, self.weights[:width], self.real[:width], self.key, self.rows[:width], self.step)


class Lane(NamedTuple):
    """What one lane of a device works on."""

    problem: Problem
    pool: Mapping[str, jax.Array]
    """All examples, columns [examples of the pool, ...]."""
    tables: Tables
    key: jax.Array
    """The round's."""
    chunk: int
    """Examples that a full gradient takes at once."""
    alone: bool
    """Whether the device has no other lane, so that a conditional runs one of its branches and not both."""

    def chunk_of(self, i: jax.Array) -> Examples:
        """The i-th chunk of the lane's examples, each weighted as its client's full gradient is."""
        start, count, owner, number = Chunk(*jnp.asarray(self.tables.chunks)[i])
        offsets = jnp.arange(self.chunk)
        rows = start + jnp.minimum(offsets, count - 1)
        real = offsets < count
        key = jax.random.fold_in(jax.random.fold_in(self.key, owner), PROBE_STREAM + number)
        return Examples(self._gather(rows), jnp.where(real, self.tables.weights[rows], 0), real, key, rows, i)

    def trainee(self, i: jax.Array) -> Trainee:
        """The i-th client that the lane trains."""
        return Trainee(*jnp.asarray(self.tables.clients)[i])

    def batch(self, trainee: Trainee, k: jax.Array, dtype: Any) -> Examples:
        """The k-th mini-batch of a client; its examples weigh 1/count, so that sums are means."""
        step = trainee.first + k
        rows, count = jnp.asarray(self.tables.rows)[step], jnp.asarray(self.tables.counts)[step]
        real = jnp.arange(rows.shape[0]) < count
        key = jax.random.fold_in(jax.random.fold_in(self.key, trainee.client), k)
        return Examples(self._gather(rows), real.astype(dtype) / count.astype(dtype), real, key, rows, step)

    def _gather(self, rows: jax.Array) -> dict[str, jax.Array]:
        places = jnp.asarray(self.tables.places)[rows]
        return {name: ops.take(column, places) for name, column in self.pool.items()}


class AtAnchor(NamedTuple):
    """What the full gradient at the anchor recorded for local steps."""

    how: str
    """`"factors"` or `"cache"`; see the top of this module."""
    losses: jax.Array
    """[examples] with factors, [steps] with cached gradients: the loss at the anchor."""
    tables: Any
    """Pytree of arrays with the same leading axis: factors of each example, or the gradient of each mini-batch."""


def loss_and_grad(lane: Lane, y: Vector, examples: Examples) -> tuple[jax.Array, Vector]:
    """The weighted sum of the examples' losses at y, and its gradient.

    A problem with factors has back-propagation by hand, which is faster than autodiff for the plain gradient, too. For
    others, a mini-batch that is at most half full is computed at half the width: clients with few examples have many
    of them (an eighth of the CPU time of an LSTM's round).
    """
    problem, half = lane.problem, examples.rows.shape[0] // 2
    if problem.factors is not None:
        fields, weights, key = examples.fields, examples.weights, examples.key
        losses, grad = problem.factors.grad_difference(y.tree, fields, None, weights, key)
        return _weighted(losses, examples), LazyVector(grad)
    at = functools.partial(jax.value_and_grad(_weighted_loss, argnums=1), problem, y.tree)
    if half and lane.alone:
        loss, grad = lax.cond(examples.real[half], lambda: at(examples), lambda: at(examples.first(half)))
    else:
        loss, grad = at(examples)
    return loss, Vector(grad)


def _weighted_loss(problem: Problem, params: Any, examples: Examples) -> jax.Array:
    return _weighted(problem.loss(params, examples.fields, examples.key), examples)


def _weighted(losses: jax.Array, examples: Examples) -> jax.Array:
    """Padding cannot leak into the sum: its losses are replaced, not multiplied by zero."""
    return jnp.sum(jnp.where(examples.real, losses, 0) * examples.weights.astype(losses.dtype))


def loss_and_difference(
    lane: Lane, y: Vector, x: Vector, examples: Examples, at_anchor: AtAnchor | None
) -> tuple[jax.Array, Vector]:
    """The loss of a mini-batch at y, and its gradient at y minus the one at the anchor x."""
    if at_anchor is None:
        loss, at_y = loss_and_grad(lane, y, examples)
        return loss, at_y - loss_and_grad(lane, x, examples)[1]
    if at_anchor.how == "cache":
        loss, at_y = loss_and_grad(lane, y, examples)
        return loss, at_y - Vector(
            jax.tree.map(
                lambda leaf: lax.dynamic_index_in_dim(leaf, examples.step, 0, keepdims=False), at_anchor.tables
            )
        )
    rules = lane.problem.factors
    assert rules is not None
    factors = jax.tree.map(lambda leaf: ops.take(leaf, examples.rows), at_anchor.tables)
    fields, weights, key = examples.fields, examples.weights, examples.key
    losses, grad = rules.grad_difference(y.tree, fields, factors, weights, key)
    return _weighted(losses, examples), LazyVector(grad)


def loss_at_anchor(examples: Examples, at_anchor: AtAnchor) -> jax.Array:
    """The loss of a mini-batch at the anchor, where it was recorded."""
    if at_anchor.how == "cache":
        return at_anchor.losses[examples.step]
    return _weighted(at_anchor.losses[examples.rows], examples)


class Part(NamedTuple):
    """Consecutive chunks and clients of a lane: all of them, or those of one client."""

    chunks: tuple[Any, Any]
    """The first chunk, and the one after the last."""
    clients: tuple[Any, Any]
    """The first client that trains, and the one after the last."""


def whole(lane: Lane) -> Part:
    """All of a lane."""
    return Part((0, lane.tables.lengths[0]), (0, lane.tables.lengths[1]))


def full_gradient(lane: Lane, point: Vector, part: Part, how: str | None, recorded: Any) -> tuple[Vector, Any]:
    """A part's share of the mean full gradient at a point, and what is recorded of the gradients there.

    Args:
        how: `None`, `"factors"`, `"steps"` or `"cache"`; see the top of this module.
        recorded: the tables of `blank_tables`, in which other parts may have written before.
    """
    if how in ("steps", "cache"):
        return _by_steps(lane, point, part, recorded)
    if how == "factors":
        return _with_factors(lane, point, part, recorded)

    def add(i: jax.Array, total: Vector) -> Vector:
        return formed(lazy(total) + loss_and_grad(lane, point, lane.chunk_of(i))[1])

    return lax.fori_loop(*part.chunks, add, zeros(point)), recorded


def blank_tables(lane: Lane, point: Vector, how: str | None) -> Any:
    """Empty tables for what is recorded of the gradients at a point: losses, and factors or gradients; or nothing."""
    if how == "factors":
        losses, factors = jax.eval_shape(lambda: _record(lane, point, jnp.zeros((), jnp.int32))[1:])
        length = lane.tables.places.shape[0] + lane.chunk  # the padding of the last chunk is written, too
        return jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape[1:]), leaf.dtype), (losses, factors))
    if how == "cache":
        steps, loss = lane.tables.counts.shape[0], jnp.zeros((), jax.tree.leaves(point)[0].dtype)
        return jax.tree.map(lambda leaf: jnp.zeros((steps, *leaf.shape), leaf.dtype), (loss, point.tree))
    return ()


def _record(lane: Lane, point: Vector, i: jax.Array) -> tuple[Examples, jax.Array, Any]:
    """The i-th chunk with the losses and factors of its examples."""
    examples, rules = lane.chunk_of(i), lane.problem.factors
    assert rules is not None
    return examples, *rules.record(point.tree, examples.fields, examples.key)


def _with_factors(lane: Lane, point: Vector, part: Part, recorded: Any) -> tuple[Vector, Any]:
    rules = lane.problem.factors
    assert rules is not None

    def add(i: jax.Array, carry: tuple[Vector, Any]) -> tuple[Vector, Any]:
        total, recorded = carry
        examples, losses, factors = _record(lane, point, i)
        total = formed(lazy(total) + LazyVector(rules.mean_grad(factors, examples.fields, examples.weights)))
        # The padding of a chunk overwrites the first rows of the next one, whose turn comes later.
        start = examples.rows[0]
        return total, jax.tree.map(
            lambda table, new: lax.dynamic_update_slice_in_dim(table, new, start, 0), recorded, (losses, factors)
        )

    return lax.fori_loop(*part.chunks, add, (zeros(point), recorded))


def _by_steps(lane: Lane, point: Vector, part: Part, recorded: Any) -> tuple[Vector, Any]:
    """The full gradients at a point, a sum over mini-batches with the random numbers of the local steps.

    If `recorded` has tables, the loss and the gradient of every mini-batch are written to them.
    """
    tables = lane.tables
    dtype = jax.tree.leaves(point)[0].dtype

    def of_client(i: jax.Array, carry: Any) -> Any:
        trainee = lane.trainee(i)

        def add(k: jax.Array, carry: Any) -> Any:
            total, recorded = carry
            examples = lane.batch(trainee, k, dtype)
            loss, grad = loss_and_grad(lane, point, examples)
            share = jnp.asarray(tables.weights)[examples.rows[0]] * tables.counts[examples.step]  # w_j · count / n_j
            if recorded:
                new = (loss.astype(dtype), grad.tree)
                recorded = jax.tree.map(
                    lambda table, row: lax.dynamic_update_index_in_dim(table, row, examples.step, 0), recorded, new
                )
            return formed(lazy(total) + share * grad), recorded

        return lax.fori_loop(0, trainee.steps, add, carry)

    return lax.fori_loop(*part.clients, of_client, (zeros(point), recorded))
