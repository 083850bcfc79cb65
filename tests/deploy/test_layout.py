"""Layouts: both sides derive the same one, and an array that stands twice is sent once."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.setting import KINDS, PROBLEM, a, model, o
from fedmime.deploy.layout import layout_of
from fedmime.vector import nbytes

MODEL = model()
SIZE = nbytes(MODEL)
DEPLOYED = {name: each for name, each in KINDS.items() if name != "centralized"}


def _bytes(shapes: Any) -> int:
    return sum(nbytes(shape) for shape in shapes)


@pytest.mark.parametrize("name", DEPLOYED)
def test_a_layout_has_the_bytes_that_cost_counts(name: str) -> None:
    algorithm = DEPLOYED[name]
    layout, cost = layout_of(algorithm, MODEL), fm.communication.cost(algorithm, MODEL)
    points, message = set(layout.points.slots), set() if layout.message is None else set(layout.message.slots)
    down = sum(nbytes(layout.shapes[slot]) for slot in (message if algorithm.split else points | message))
    assert down == cost.update.down
    gradients = len(layout.points.slots) // len(layout.gradient.shapes)
    up = 0 if layout.update is None else _bytes(layout.update.shapes)
    assert up + (0 if algorithm.split else gradients * SIZE) == cost.update.up
    if cost.prime is not None:
        assert sum(nbytes(layout.shapes[slot]) for slot in set(layout.prime.slots)) == cost.prime.down


@pytest.mark.parametrize("name", DEPLOYED)
def test_shapes_give_the_layout_of_arrays(name: str) -> None:
    shapes = jax.eval_shape(PROBLEM.init, jax.random.key(0))
    one, other = layout_of(DEPLOYED[name], MODEL), layout_of(DEPLOYED[name], shapes)
    assert one._replace(blank=()) == other._replace(blank=())
    assert jax.tree.leaves(one.blank) == jax.tree.leaves(other.blank)


@pytest.mark.parametrize("name", [name for name, each in DEPLOYED.items() if each.local_steps])
def test_messages_come_back_from_their_arrays(name: str) -> None:
    algorithm = DEPLOYED[name]
    layout, server = layout_of(algorithm, MODEL), algorithm.init(MODEL).server
    h = algorithm.points(server)
    message = fm.algorithms.algorithm.at_round(algorithm, 0).broadcast(server, h)
    assert layout.message is not None
    arrays = layout.message.by_slot(message)
    assert jax.tree.structure(layout.message.filled(arrays)) == jax.tree.structure(message)
    for slot, array in arrays.items():
        assert (array.shape, array.dtype) == (layout.shapes[slot].shape, layout.shapes[slot].dtype)


def test_what_is_averaged_and_summed_is_sent_once() -> None:
    layout = layout_of(a.feddyn(0.1, 0.5), MODEL)
    assert layout.update is not None
    assert _bytes(layout.update.shapes) == SIZE
    arrays = [np.ones(shape.shape) for shape in layout.update.shapes]
    send, add = layout.update.places.filled(arrays)
    assert all(p is q for p, q in zip(jax.tree.leaves(send), jax.tree.leaves(add), strict=True))
    assert layout.update.arrays((send, add)) == arrays


def test_what_clients_keep_is_known() -> None:
    assert nbytes(layout_of(a.scaffold(0.1), MODEL).blank) == SIZE
    assert jax.tree.leaves(layout_of(a.mime(o.adam(), 0.1), MODEL).blank) == []
