"""MVR's random output: one of the iterates that clients visited, each equally likely."""

import collections

import jax
import jax.numpy as jnp
import numpy as np

import fedmime as fm
from engine.setting import a
from fedmime.algorithms.algorithm import Replies
from fedmime.engine.backends.local.layout import Layout
from fedmime.engine.backends.specification import Local

ETA, ROUNDS = 0.5, 2
STEPS = {0: 1, 1: 3}  # of each client
GRADIENTS = np.array([[1.0, 0.0], [0.0, 1.0]])  # of each client, everywhere


def _loss(params, batch, key):
    return batch["g"] @ params["x"]


PROBLEM = fm.models.from_functions(lambda key: None, _loss)
COHORT = fm.Cohort.from_batches([{"g": np.tile(GRADIENTS[i], (k, 1, 1))} for i, k in STEPS.items()], weights=[1, 1])


def _visited() -> list[tuple[float, float]]:
    """All y before a step: with beta = 0 and linear losses every client walks straight."""
    x, points = np.zeros(2), []
    for _ in range(ROUNDS):
        points += [tuple(x - ETA * k * GRADIENTS[i]) for i, steps in STEPS.items() for k in range(steps)]
        x = x - ETA * np.mean([k * GRADIENTS[i] for i, k in STEPS.items()], axis=0)
    return points


def _drawn(seed: int, backend: Local) -> tuple[float, float]:
    algorithm = a.mime_lite_mvr(ETA, 0.0, init_rounds=0, output="random")
    state = algorithm.init({"x": jnp.zeros(2)})
    for _ in range(ROUNDS):
        state, _ = fm.run_round(algorithm, PROBLEM, state, COHORT, jax.random.key(seed), backend=backend)
    assert float(state.server.seen) == ROUNDS * sum(STEPS.values())
    return tuple(np.asarray(state.server.drawn.tree["x"]))


def test_output_is_uniform_over_the_visited_iterates() -> None:
    runs, backend = 200, Local(2, Layout(2, 256))
    expected = collections.Counter(_visited())  # both clients start a round at the same x
    found = collections.Counter(_drawn(seed, backend) for seed in range(runs))
    assert set(found) <= set(expected)
    share = {point: runs * times / expected.total() for point, times in expected.items()}
    chi2 = sum((found[point] - n) ** 2 / n for point, n in share.items())
    assert len(share) == 6
    assert chi2 < 20.5  # the 0.1 % point with 5 degrees of freedom


def test_last_output_keeps_no_iterate() -> None:
    state = a.mime_lite_mvr(ETA, 0.0).init({"x": jnp.zeros(2)})
    assert state.server.drawn is None
    assert state.server.seen is None


def test_an_iterate_that_never_came_is_not_drawn() -> None:
    """The client that was to send it dropped out or was refused: the sum of what clients drew is zero."""
    algorithm = a.mime_lite_mvr(ETA, 0.0, init_rounds=0, output="random")
    server = algorithm.init({"x": jnp.ones(2)}).server
    zero, there = fm.Vector({"x": jnp.zeros(2)}), fm.Vector({"x": jnp.full(2, 3.0)})
    for total, expected in ((zero, 1.0), (there, 3.0)):
        replies = Replies(zero, total, jnp.asarray(2.0), jnp.asarray(4.0), jnp.asarray(2.0), 0.0)
        drawn = algorithm.server(server, (zero, zero), replies).drawn
        np.testing.assert_array_equal(drawn.tree["x"], np.full(2, expected))
