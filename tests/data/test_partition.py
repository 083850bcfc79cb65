"""Partitioners: every example exactly once, the skew that was asked for, the seed and nothing else."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmime as fm
from fedmime.data import Population, partition
from fedmime.errors import ConfigError, DataError

Y = np.repeat(np.arange(10), 60).astype(np.int32)
X = np.arange(600, dtype=np.float32)[:, None]

PARTITIONS: dict[str, Callable[[int], Population]] = {
    "iid": lambda seed: partition.iid(X, Y, 20, seed),
    "dirichlet": lambda seed: partition.dirichlet(X, Y, 20, 0.3, seed),
    "quantity": lambda seed: partition.quantity(X, Y, 20, 0.5, seed),
    "shards": lambda seed: partition.shards(X, Y, 20, 2, seed),
    "by_label": lambda seed: partition.by_label(X, Y, 20, 2, seed),
}


def held(population: Population) -> np.ndarray:
    return np.concatenate([population.client_at(i)["x"][:, 0] for i in range(len(population))])


def labels(population: Population) -> list[int]:
    return [len(np.unique(population.client_at(i)["y"])) for i in range(len(population))]


@pytest.mark.parametrize("make", PARTITIONS.values(), ids=PARTITIONS)
def test_every_example_lands_once_and_the_seed_decides(make: Callable[[int], Population]) -> None:
    population = make(0)
    assert len(population) == 20
    assert population.sizes.min() >= 1
    np.testing.assert_array_equal(np.sort(held(population)), X[:, 0])
    for i in range(20):
        columns = population.client_at(i)
        np.testing.assert_array_equal(columns["y"], Y[columns["x"][:, 0].astype(int)])
    assert make(0).identity() == population.identity() != make(1).identity()


def test_skews_are_what_they_say() -> None:
    assert set(partition.iid(X, Y, 7).sizes.tolist()) == {85, 86}
    assert (
        np.mean(labels(partition.dirichlet(X, Y, 20, 0.05)))
        < 3
        < 9
        < np.mean(labels(partition.dirichlet(X, Y, 20, 100)))
    )
    assert max(labels(partition.shards(X, Y, 20, 2))) <= 4
    assert labels(partition.by_label(X, Y)) == [1] * 10
    assert labels(partition.by_label(X, Y, 20, 2)) == [2] * 20
    assert partition.quantity(X, Y, 20, 0.3).sizes.max() > 100


def test_by_column_names_clients_after_its_values() -> None:
    users = np.array(["bo", "al", "bo"])
    population = partition.by_column(X[:3], Y[:3], users)
    assert list(population.ids) == ["al", "bo"]
    assert population.sizes.tolist() == [1, 2]
    assert population.client("bo")["x"][:, 0].tolist() == [0, 2]
    with pytest.raises(DataError, match="one value for each of 3"):
        partition.by_column(X[:3], Y[:3], users[:2])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.floats(0.01, 50), st.integers(0, 2**40), st.integers(0, 3))
def test_dirichlet_keeps_its_promises(clients: int, alpha: float, seed: int, min_size: int) -> None:
    y = np.random.default_rng(seed).integers(0, 7, 150)
    population = partition.dirichlet(np.arange(150.0)[:, None], y, clients, alpha, seed, min_size)
    assert population.sizes.sum() == 150
    assert population.sizes.min() >= min_size
    assert len(np.unique(held(population))) == 150


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: partition.iid(X, Y, 0), "clients must be a positive integer, got 0"),
        (lambda: partition.iid(X, Y, 601), "clients=601"),
        (lambda: partition.dirichlet(X, Y, 5, -1.0), "alpha must be positive and finite, got -1.0"),
        (lambda: partition.dirichlet(X, Y, 5, float("nan")), "alpha"),
        (lambda: partition.iid(X, Y, 5, seed=-1), "seed must be an integer"),
        (lambda: partition.by_label(X, Y, 3, 2), "cannot hold 10 labels"),
        (lambda: partition.split(Y, 1.5), "fraction"),
        (lambda: partition.regroup(partition.iid(X, Y, 5), 6), r"clients must lie in \[1, 5\], got 6"),
    ],
)
def test_bad_arguments(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call()


def test_unequal_lengths_are_a_data_error() -> None:
    with pytest.raises(DataError, match="x has 600, y has 599"):
        partition.iid(X, Y[1:], 5)


def test_the_split_is_stratified() -> None:
    train, test = partition.split(Y, 0.2, 3)
    assert np.bincount(Y[test]).tolist() == [12] * 10
    assert len(np.intersect1d(train, test)) == 0
    assert len(train) + len(test) == 600


@given(clients=st.integers(1, 20), groups=st.integers(1, 20), seed=st.integers(0, 5))
def test_regrouped_clients_hold_what_every_nth_one_held(clients: int, groups: int, seed: int) -> None:
    before = partition.quantity(X, Y, clients, 0.5, seed, test={"x": X[:3], "y": Y[:3]})
    if groups > clients:
        return
    after = partition.regroup(before, groups)
    assert len(after) == groups
    for k in range(groups):
        for field, values in after.client_at(k).items():
            parts = [before.client_at(i)[field] for i in range(k, clients, groups)]
            np.testing.assert_array_equal(values, np.concatenate(parts))
            assert len(values) == after.sizes[k]
    assert after.test is not None
    np.testing.assert_array_equal(after.test["x"], X[:3])
    assert after.identity() != before.identity()


def test_regrouped_clients_may_be_empty_and_untested() -> None:
    few = fm.data.from_arrays({"a": {"x": X[:2], "y": Y[:2]}, "b": {"x": X[:0], "y": Y[:0]}})
    after = partition.regroup(few, 2)
    assert after.sizes.tolist() == [2, 0]
    assert after.client_at(1)["x"].shape == (0, 1)
    assert after.test is None


@pytest.mark.parametrize("make", PARTITIONS, ids=PARTITIONS)
def test_clients_hold_out_a_fraction_of_their_own(make: str) -> None:
    call = {
        "iid": lambda **held: partition.iid(X, Y, 20, **held),
        "dirichlet": lambda **held: partition.dirichlet(X, Y, 20, 0.3, **held),
        "quantity": lambda **held: partition.quantity(X, Y, 20, 0.5, **held),
        "shards": lambda **held: partition.shards(X, Y, 20, 2, **held),
        "by_label": lambda **held: partition.by_label(X, Y, 20, 2, **held),
    }[make]
    whole, parted = call(), call(test_clients=0.25)
    held_out = parted.test_clients
    assert held_out is not None
    assert list(held_out.ids) == list(parted.ids) == list(whole.ids)
    for i, size in enumerate(whole.sizes.tolist()):
        both = np.concatenate([parted.client_at(i)["x"], held_out.client_at(i)["x"]])
        np.testing.assert_array_equal(np.sort(both, axis=0), whole.client_at(i)["x"])
        assert held_out.sizes[i] == min(round(size / 4), size - 1)
        np.testing.assert_array_equal(held_out.client_at(i)["y"], Y[held_out.client_at(i)["x"][:, 0].astype(int)])
    assert parted.test is not None
    assert len(parted.test["y"]) == held_out.sizes.sum()
    assert call(test_clients=0.25).identity() == parted.identity() != whole.identity()
    assert call(test_clients=0.25, seed=1).identity() != parted.identity()


def test_by_column_with_test_clients() -> None:
    users = np.array(["bo", "al", "bo"])
    held_out = partition.by_column(X[3:5], Y[3:5], users[:2])
    population = partition.by_column(X[:3], Y[:3], users, test_clients=held_out)
    assert population.test_clients is held_out
    assert population.test is not None
    assert population.test["x"][:, 0].tolist() == [4, 3]
    halves = partition.by_column(X[:3], Y[:3], users, test_clients=0.5).test_clients
    assert halves is not None
    assert dict(zip(halves.ids, halves.sizes.tolist(), strict=True)) == {"al": 0, "bo": 1}
    with pytest.raises(DataError, match="test_clients, field 'x' holds float64"):
        partition.by_column(X[:3], Y[:3], users, test_clients=partition.iid(np.zeros((2, 1)), Y[:2], 1))
    with pytest.raises(ConfigError, match=r"a fraction in \(0, 1\), got 1.5"):
        partition.by_column(X[:3], Y[:3], users, test_clients=1.5)
