"""Gradients of a lane laid out by hand: three clients in chunks of two, and in mini-batches of two."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.setting import PROBLEM, close, columns, model
from fedmime.engine.backends.local.gradients import (
    AtAnchor,
    Lane,
    Part,
    blank_tables,
    full_gradient,
    loss_and_difference,
    loss_and_grad,
    loss_at_anchor,
    whole,
)
from fedmime.engine.backends.local.layout import Tables
from fedmime.vector import Vector

SIZES, SHARES = (3, 1, 2), (0.5, 0.2, 0.3)
OWNER = np.repeat(np.arange(3), SIZES)
POOL = {name: column[::-1] for name, column in columns(np.random.default_rng(0), 6).items()}
PLACES = np.asarray([5, 4, 3, 2, 1, 0])  # the pool has the examples in another order
FIELDS = {name: column[PLACES] for name, column in POOL.items()}
WEIGHTS = np.asarray(SHARES)[OWNER] / np.asarray(SIZES)[OWNER]
TABLES = Tables(
    places=PLACES,
    weights=WEIGHTS,
    chunks=np.asarray([[0, 2, 0, 0], [2, 1, 0, 1], [3, 1, 1, 0], [4, 2, 2, 0], [0, 1, 0, 0]]),  # the last is padding
    rows=np.asarray([[0, 1], [2, 2], [3, 3], [4, 5], [0, 0]]),
    counts=np.asarray([2, 1, 1, 2, 1]),
    clients=np.asarray([[0, 2, 0, 0], [2, 1, 1, 2], [3, 1, 2, 3]]),
    shares=np.asarray(SHARES),
    lengths=np.asarray([4, 3, 0]),
    gradient_clients=np.zeros((0, 3), int),
    gradient_shares=np.zeros(0),
)
LANE = Lane(PROBLEM, *jax.tree.map(jnp.asarray, (POOL, TABLES)), jax.random.key(0), chunk=2, alone=True)
X, Y = (Vector(jax.tree.map(jnp.asarray, model(seed))) for seed in (0, 1))


def _loss(params, weights):
    return jnp.vdot(PROBLEM.loss(params, FIELDS, jax.random.key(0)), weights)


def _grad(point: Vector, weights: np.ndarray):
    return jax.grad(_loss)(point.tree, weights)


@pytest.mark.parametrize("how", [None, "steps", "cache"])
def test_the_full_gradient_is_the_weighted_mean_of_the_clients(how: str | None) -> None:
    found, _ = full_gradient(LANE, X, whole(LANE), how, blank_tables(LANE, X, how))
    close(found.tree, _grad(X, WEIGHTS))


@pytest.mark.parametrize("how", [None, "steps"])
def test_a_part_is_one_client_alone(how: str | None) -> None:
    found, _ = full_gradient(LANE, X, Part((0, 2), (0, 1)), how, ())
    close(found.tree, _grad(X, np.where(OWNER == 0, WEIGHTS, 0)))


def test_padding_reaches_neither_loss_nor_gradient() -> None:
    """Its rows repeat real ones; whatever they hold is replaced and not multiplied by zero."""
    examples = LANE.chunk_of(jnp.asarray(1))
    assert examples.real.tolist() == [True, False]
    broken = dict(examples.fields, x=examples.fields["x"].at[1].set(jnp.inf))
    expected = loss_and_grad(LANE, X, examples)
    found = loss_and_grad(LANE, X, examples._replace(fields=broken))
    close((found[0], found[1].tree), (expected[0], expected[1].tree))
    close(expected[1].tree, _grad(X, np.where(np.arange(6) == 2, WEIGHTS, 0)))


@pytest.mark.parametrize("kept", [True, False])
def test_a_difference_with_a_kept_gradient_is_that_of_two(kept: bool) -> None:
    _, (losses, grads) = full_gradient(LANE, X, whole(LANE), "cache", blank_tables(LANE, X, "cache"))
    at_anchor = AtAnchor("cache", losses, grads)
    for client, k, rows in ((0, 0, [0, 1]), (0, 1, [2]), (2, 0, [4, 5])):
        examples = LANE.batch(LANE.trainee(jnp.asarray(client)), jnp.asarray(k), jnp.float64)
        weights = np.isin(np.arange(6), rows) / len(rows)
        loss, difference = loss_and_difference(LANE, Y, X, examples, at_anchor if kept else None)
        close(loss, _loss(Y.tree, weights))
        close(difference.tree, jax.tree.map(jnp.subtract, _grad(Y, weights), _grad(X, weights)))
        close(loss_at_anchor(examples, at_anchor), _loss(X.tree, weights))
