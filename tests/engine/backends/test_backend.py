"""What back ends have in common: what they are asked, what they do by default, and how messages become sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, o, population
from fedmime.aggregation.aggregator import PLAIN
from fedmime.algorithms.abstract import anchor_of
from fedmime.engine.backends.backend import Accepted, Backend, Work
from fedmime.engine.sampling import Schedule

MIME, SPLIT = (a.mime(o.momentum(), 0.1, split=split) for split in (False, True))
MESSAGES = [(0.5, jnp.array([1.0, 5.0])), (0.25, jnp.array([2.0, -3.0])), (0.25, jnp.array([4.0, 1.0]))]


def _work(algorithm: fm.Algorithm, epochs: int) -> Work:
    """A round's work of four clients."""
    cohort = Schedule(4, 2, epochs, None, 0, "examples").cohort(algorithm, population((3, 1, 2, 4)), 0)
    shares, key = np.full(4, 0.25), jax.random.key(0)
    anchor = anchor_of(algorithm, algorithm.init(PROBLEM.init(key)).server)
    return Work(algorithm, 0, cohort, shares, shares, key, -1, True, anchor, PLAIN)


@pytest.mark.parametrize(
    ("algorithm", "epochs", "random", "expected"),
    [
        (MIME, 1, True, True),
        (MIME, 1, False, False),  # without random numbers, large batches give the same gradient
        (MIME, 2, True, False),  # an example is in two mini-batches, under two masks
        (SPLIT, 1, True, False),  # others are asked for the gradient
        (a.mime_lite(o.momentum(), 0.1), 1, True, False),  # no step uses a difference
    ],
)
def test_full_gradients_take_the_masks_of_local_steps_where_a_difference_needs_them(
    algorithm: fm.Algorithm, epochs: int, random: bool, expected: bool
) -> None:
    assert _work(algorithm, epochs).by_steps(random) is expected


def test_in_a_simulation_clients_know_the_key_and_nothing_is_sent() -> None:
    key, blank = jax.random.key(1), {"c": np.zeros(2)}
    cost = fm.communication.cost(MIME, PROBLEM.init(key))

    class Simulated(Backend):
        """What a back end has that says nothing else."""

    simulated = Simulated()
    assert simulated.noise_key(key) is key
    assert simulated.stored(blank) is blank
    assert simulated.traffic(cost, MIME) is cost
    assert simulated.telemetry() == {}
    assert simulated.broadcaster is None


def test_sums_are_weighted_and_what_is_beside_them_is_not() -> None:
    accepted = Accepted(linear=True)
    assert accepted.totals is None
    for w, message in MESSAGES:
        accepted.add(w, message, message, jnp.ones(()))
    totals = accepted.totals
    assert totals is not None
    np.testing.assert_allclose(totals.send, [2.0, 2.0])
    np.testing.assert_allclose(totals.add, [7.0, 3.0])
    assert (float(totals.scalars), accepted.weight, totals.messages) == (3.0, 1.0, None)


def test_padding_counts_for_nothing() -> None:
    for combiner in (fm.aggregation.median(), fm.aggregation.krum(0), fm.aggregation.geometric_median(8)):
        found = []
        for rows in (0, 5):
            accepted = Accepted(linear=False, rows=rows)
            for w, message in MESSAGES:
                accepted.add(w, message)
            messages = accepted.collected
            assert len(messages.weights) == max(rows, 3)
            found.append(combiner.combine(messages.values, messages.weights))
        np.testing.assert_allclose(*found, rtol=1e-12)
