"""Bytes of encoded messages: what `cost` counts from shapes is what packing really encoded messages gives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, o, population
from fedmime.aggregation import wire
from fedmime.aggregation.aggregator import Aggregator, distinct, sender_of
from fedmime.aggregation.encoder import BROADCAST, GRADIENT, SERVER, UPDATE
from fedmime.algorithms.abstract import reply_of
from fedmime.experiments.tasks import TASKS

g = fm.aggregation
cost, cohort_for_budget = fm.communication.cost, fm.communication.cohort_for_budget
PARAMS = {"w": np.zeros((23, 9), np.float32), "b": np.zeros(9, np.float32)}
KEY = jax.random.key(0)
EIGHT = g.chain(g.quantize(8), down=g.quantize(8))
CHAINS: dict[str, Any] = {
    "plain": g.mean(),
    "clip": g.clip(1.0),
    "3 bits": g.quantize(3),
    "8 bits both ways": EIGHT,
    "11 bits, 1 bit down": g.chain(g.quantize(11, rotate=True), down=g.quantize(1)),
    "random_k of 5 bits": g.chain(g.clip(1.0), g.random_k(0.13), g.quantize(5), down=g.quantize(16)),
    "top_k of 4 bits": g.error_feedback(g.chain(g.top_k(0.1), g.quantize(4))),
    "low rank": g.chain(g.low_rank(2), g.median()),
    "noise": g.chain(g.gaussian(1.0, 1.0), g.quantize(8)),
}
ALGORITHMS: dict[str, Any] = {
    "fedavg": a.fedavg(0.1),
    "scaffold": a.scaffold(0.1),
    "feddyn": a.feddyn(0.1, 0.1),
    "fednova": a.fednova(0.1),
    "mime": a.mime(o.momentum(), 0.1),
    "mime adam, split": a.mime(o.adam(), 0.1, split=True),
    "mime_mvr": a.mime_mvr(0.1, 0.9),
    "server_only": a.server_only(o.adam(), 0.1),
}


def _drawn(like: Any) -> Any:
    """Arrays of random numbers, of which those that are the same array stay one."""
    leaves, restored = distinct(like)
    keys = jax.random.split(KEY, len(leaves))
    return restored([jax.random.normal(k, v.shape, v.dtype) for k, v in zip(keys, leaves, strict=True)])


def _down(aggregator: Aggregator, message: Any, exact: Any = ()) -> int:
    as_is = [id(leaf) for leaf in jax.tree.leaves(exact)]
    packed = [
        wire.pack(leaf if id(leaf) in as_is else aggregator.encode(leaf, sender_of(BROADCAST, KEY, SERVER, i)))
        for i, leaf in enumerate(distinct(message)[0])
    ]
    return sum(map(len, packed))


def _gradients(aggregator: Aggregator, points: Any) -> int:
    return sum(len(wire.pack(aggregator.encode(p, sender_of(GRADIENT, KEY, 3, i)))) for i, p in enumerate(points))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_cost_counts_what_packing_gives(algorithm: str, fact) -> None:
    recipe = ALGORITHMS[algorithm]
    server = recipe.init(_drawn(PARAMS)).server
    server = _drawn(server)
    points, prime = recipe.points(server), recipe.prime_points(server)
    number = list(ALGORITHMS).index(algorithm)
    for chain in list(CHAINS.values())[number % 2 :: 2]:  # every chain with three algorithms, every algorithm with four
        aggregator, counted = g.chain(chain), cost(recipe, PARAMS, chain)
        asked = _down(aggregator, points), _gradients(aggregator, points)
        if counted.prime is not None:
            assert counted.prime == fm.communication.Traffic(_down(aggregator, prime), _gradients(aggregator, prime))
        if not recipe.local_steps:
            assert (counted.update.down, counted.update.up) == asked
            continue
        message = recipe.broadcast(server, tuple(map(_drawn, points)))
        sent = [
            jax.random.normal(KEY, leaf.shape, leaf.dtype)
            for leaf in reply_of(recipe, server, lambda reply: distinct((reply.send, reply.add))[0])
        ]
        up = len(wire.pack(aggregator.encode(sent, sender_of(UPDATE, KEY, 3))))
        if counted.gradient is not None:
            assert (counted.gradient.down, counted.gradient.up) == asked
            expected = _down(aggregator, message, recipe.exact(message)), up
        else:
            expected = _down(aggregator, (points, message), recipe.exact(message)), asked[1] + up
        assert (counted.update.down, counted.update.up) == expected
        fact("costs that equal the packed bytes of encoded messages")


def test_statistics_that_divide_go_down_exactly() -> None:
    """Adam's m and v, of which a v that is rounded to zero would blow up every step, cost their full size."""
    model = 4 * (23 * 9 + 9)
    plain, ours = (cost(a.mime(o.adam(), 0.1), PARAMS, chain).update.down for chain in (g.mean(), EIGHT))
    small = len(wire.pack(_encoded(EIGHT, PARAMS)))
    assert plain == 4 * model
    assert ours == 2 * model + 2 * small  # m and v; x and c


def _encoded(aggregator: Aggregator, tree: Any) -> list[Any]:
    return [aggregator.encode(jnp.asarray(leaf), sender_of(BROADCAST, KEY, SERVER)) for leaf in jax.tree.leaves(tree)]


def test_cohorts_for_a_budget_and_histories_follow() -> None:
    algorithm = a.mime(o.momentum(), 0.1)
    plain, eight = (cohort_for_budget(algorithm, PARAMS, 100.0, chain) for chain in (g.mean(), EIGHT))
    assert (plain, eight) == (20, int(100 / cost(algorithm, PARAMS, EIGHT).model_sizes + 1e-3))
    assert eight > 3 * plain
    clients, each = population((5, 3, 8)), cost(algorithm, PROBLEM.init(KEY), EIGHT)
    told = fm.simulate(algorithm, PROBLEM, clients, 3, 2, aggregation=EIGHT, devices=1).history
    np.testing.assert_array_equal(told["bytes_down"], 2 * each.update.down)
    np.testing.assert_array_equal(told["bytes_up"], 2 * each.update.up)
    np.testing.assert_array_equal(told["bytes_total"], 2 * each.bytes * np.arange(1, 4))


@pytest.mark.parametrize("task", ["handwriting-mlp", "digits-logistic"])
def test_eight_bits_both_ways_take_at_most_27_percent(task: str, fact) -> None:
    params = jax.tree.map(lambda v: v.astype(np.float32), TASKS[task].problem().init(KEY))
    algorithm = a.mime(o.momentum(), 0.1)
    share = cost(algorithm, params, EIGHT).bytes / cost(algorithm, params).bytes
    fact(f"bytes of Mime with 8 bits both ways, as a share of uncompressed, {task}", share)
    assert share <= 0.27
