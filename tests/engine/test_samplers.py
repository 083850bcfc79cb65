"""Samplers: seed and round decide, nothing else; the chances are what they say."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmime.engine import samplers
from fedmime.errors import ConfigError

SIZES = np.array([0, 1, 2, 3, 4, 0, 10, 20, 5, 5])

SAMPLERS: dict[str, Callable[[int, int], np.ndarray]] = {
    "uniform": lambda seed, t: samplers.uniform(1000, 20, seed, t),
    "by_size": lambda seed, t: samplers.by_size(np.arange(1000), 20, seed, t),
    "with_replacement": lambda seed, t: samplers.with_replacement(1000, 20, seed, t),
    "weighted": lambda seed, t: samplers.with_replacement(1000, 20, seed, t, np.arange(1000)),
    "poisson": lambda seed, t: samplers.poisson(1000, 20, seed, t),
    "diurnal": lambda seed, t: samplers.diurnal(1000, 20, seed, t),
}


@pytest.mark.parametrize("draw", SAMPLERS.values(), ids=SAMPLERS)
def test_rounds_in_any_order_give_the_same_cohorts(draw: Callable[[int, int], np.ndarray]) -> None:
    forward = [draw(7, t) for t in range(5)]
    backward = [draw(7, t) for t in reversed(range(5))][::-1]
    for one, other in zip(forward, backward, strict=True):
        np.testing.assert_array_equal(one, other)
        assert ((one >= 0) & (one < 1000)).all()
    assert len({tuple(cohort) for cohort in forward}) == 5
    assert tuple(draw(8, 0)) != tuple(forward[0])


@given(st.integers(1, 60), st.data(), st.integers(0, 2**63), st.integers(0, 10**6))
def test_uniform_cohorts_hold_different_clients(n: int, data: st.DataObject, seed: int, t: int) -> None:
    size = data.draw(st.integers(1, n))
    cohort = samplers.uniform(n, size, seed, t)
    assert len(np.unique(cohort)) == size


def test_uniform_is_uniform() -> None:
    counts = np.bincount(np.concatenate([samplers.uniform(10, 3, 0, t) for t in range(4000)]), minlength=10)
    np.testing.assert_allclose(counts / 4000, 0.3, atol=0.03)


def test_poisson_draws_each_client_independently() -> None:
    cohorts = [samplers.poisson(10, 3, 0, t) for t in range(4000)]
    assert all(len(np.unique(cohort)) == len(cohort) for cohort in cohorts)
    taken = np.zeros((4000, 10))
    for row, cohort in zip(taken, cohorts, strict=True):
        row[cohort] = 1
    np.testing.assert_allclose(taken.mean(0), 0.3, atol=0.03)
    np.testing.assert_allclose(
        np.cov(taken.T), 0.21 * np.eye(10), atol=0.02
    )  # a fixed size has -0.023 off the diagonal
    sizes = taken.sum(1)
    assert sizes.min() == 0
    assert sizes.var() == pytest.approx(10 * 0.3 * 0.7, rel=0.1)
    first = np.bincount([cohort[0] for cohort in cohorts if len(cohort)], minlength=10)
    np.testing.assert_allclose(first / first.sum(), 0.1, atol=0.02)
    assert sorted(samplers.poisson(6, 6, 0, 0)) == list(range(6))


def test_by_size_follows_the_sizes() -> None:
    first = np.bincount([samplers.by_size(SIZES, 1, 0, t)[0] for t in range(5000)], minlength=10)
    np.testing.assert_allclose(first / 5000, SIZES / SIZES.sum(), atol=0.03)
    assert sorted(samplers.by_size(SIZES, 8, 1, 0)) == [1, 2, 3, 4, 6, 7, 8, 9]


def test_weights_with_replacement() -> None:
    drawn = np.bincount(samplers.with_replacement(10, 20_000, 0, 0, SIZES), minlength=10)
    np.testing.assert_allclose(drawn / 20_000, SIZES / SIZES.sum(), atol=0.02)


def test_the_day_has_a_night() -> None:
    chances = np.array([samplers.availability(500, 3, t) for t in range(24)])
    assert chances.min() == pytest.approx(0.05)
    assert chances.max() == pytest.approx(0.5)
    zones = samplers.time_zones(500, 3)
    for client in range(20):
        assert (chances[:, client].argmax() + zones[client]) % 24 == 2  # two in the morning, local time
    np.testing.assert_allclose(chances[0], samplers.availability(500, 3, 24))


def test_diurnal_cohorts_follow_the_sun() -> None:
    zones = samplers.time_zones(2000, 0)
    night = np.concatenate([samplers.diurnal(2000, 50, 0, t, low=0.0) for t in (0, 24, 48, 72)])
    hours = zones[night] % 24
    near = np.minimum((hours - 2) % 24, (2 - hours) % 24) <= 6
    assert near.mean() > 0.75
    assert len(samplers.diurnal(100, 100, 0, 0, low=0.0, high=0.0)) == 0


def test_over_selection_meets_the_target_at_ten_percent_drop_out() -> None:
    assert samplers.over_selected(20) == 26
    assert samplers.over_selected(10, 1.1) == 11
    met = 0
    for t in range(200):
        asked = samplers.uniform(5000, samplers.over_selected(50), 1, t)
        result = samplers.reports(asked, 50, 0.1, 1, t)
        assert sorted([*result.in_time, *result.late, *result.dropped]) == sorted(asked)
        assert len(result.in_time) <= 50
        met += len(result.in_time) == 50
    assert met >= 195
    assert len(samplers.reports(np.arange(10), 5, 1.0, 0, 0).in_time) == 0
    assert len(samplers.reports(np.arange(0), 5, 0.5, 0, 0).in_time) == 0


def test_a_clients_luck_does_not_depend_on_the_others() -> None:
    many, few = samplers.reports(np.arange(100), 100, 0.3, 0, 5), samplers.reports(np.arange(40), 100, 0.3, 0, 5)
    assert set(few.dropped) == {client for client in many.dropped if client < 40}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: samplers.uniform(32, 50, 0, 0), "cohort_size=50 exceeds the population of 32 clients"),
        (lambda: samplers.poisson(32, 50, 0, 0), "cohort_size=50 exceeds the population of 32 clients"),
        (lambda: samplers.uniform(32, 0, 0, 0), "cohort_size must be a positive integer, got 0"),
        (lambda: samplers.uniform(32, 1, -1, 0), "seed must be an integer"),
        (lambda: samplers.by_size(SIZES, 9, 0, 0), "population of 8 clients"),
        (lambda: samplers.with_replacement(3, 1, 0, 0, np.array([1, -1, 1])), "weights must be 3"),
        (lambda: samplers.reports(np.arange(3), 3, 1.5, 0, 0), "rate must lie in"),
        (lambda: samplers.over_selected(10, 0.5), "factor >= 1"),
        (lambda: samplers.availability(3, 0, 0, low=0.9, high=0.1), "low <= high"),
    ],
)
def test_bad_arguments(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call()
