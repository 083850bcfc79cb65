"""The populations that need no files: digits and Synthetic(alpha, beta)."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedmime.data import annotators, digits, synthetic
from fedmime.errors import ConfigError


def test_digits_are_the_real_ones_split_by_label() -> None:
    population = digits()
    assert population.name == "digits"
    assert len(population) == 50
    assert population.test is not None
    assert int(population.sizes.sum()) + len(population.test["y"]) == 1797
    assert population.fields["x"] == (np.float32, (8, 8, 1), False)
    assert population.fields["y"].dtype == np.int32
    x = population.test["x"]
    assert x.dtype == np.float32
    assert x.min() == 0.0
    assert x.max() == 1.0
    assert np.bincount(population.test["y"]).min() >= 34
    assert population.identity() == digits().identity() != digits(seed=1).identity()


def test_two_labels_a_client() -> None:
    """Every client holds two labels, every label has ten holders, and no example is lost or given twice."""
    population, plain = digits(labels_per_client=2), digits()
    held = [np.unique(population.client_at(i)["y"]) for i in range(50)]
    assert {len(labels) for labels in held} == {2}
    assert np.bincount(np.concatenate(held)).tolist() == [10] * 10
    assert population.test is not None
    assert plain.test is not None
    np.testing.assert_array_equal(population.test["y"], plain.test["y"])
    assert sorted(map(bytes, population.pool()["x"])) == sorted(map(bytes, plain.pool()["x"]))


def test_annotators_err_each_in_their_own_way() -> None:
    """Annotator i says i + 1 of an i and i + 3 of an i + 5, and the truth of all else."""
    said = annotators()
    images, labels = load_digits(return_X_y=True)
    scaled = (images / 16).astype(np.float32)
    truth = {bytes(image): int(label) for image, label in zip(scaled, labels, strict=True)}
    assert list(said.ids) == [f"annotator_{i}" for i in range(10)]
    for i in range(10):
        mine = said.client_at(i)
        for image, told in zip(mine["x"], mine["y"], strict=True):
            true = truth[bytes(image)]
            assert told == ({i: i + 1, (i + 5) % 10: i + 3}.get(true, true)) % 10
    assert said.sizes.max() - said.sizes.min() <= 1
    assert said.test is not None
    assert all(truth[bytes(image)] == label for image, label in zip(said.test["x"], said.test["y"], strict=True))
    assert said.identity() == annotators().identity() != annotators(seed=1).identity()


def test_synthetic_is_deterministic_and_heterogeneous() -> None:
    population = synthetic(clients=30, seed=3)
    assert len(population) == 30
    assert population.sizes.min() >= 45
    assert population.fields["x"].shape == (20,)
    assert population.test_clients is not None
    assert population.test is not None
    assert len(population.test["y"]) == population.test_clients.sizes.sum()
    again = synthetic(clients=30, seed=3)
    np.testing.assert_array_equal(population.client_at(7)["x"], again.client_at(7)["x"])
    assert population.identity() == again.identity() != synthetic(clients=30, seed=4).identity()


def spread(beta: float) -> float:
    """How far apart the clients' feature means lie."""
    population = synthetic(clients=60, beta=beta)
    return float(np.std([population.client_at(i)["x"].mean() for i in range(60)]))


def test_beta_moves_the_features_apart() -> None:
    assert spread(0.0) < spread(2.0) / 3


@pytest.mark.parametrize("bad", [{"clients": 0}, {"dim": 0}, {"classes": 1.5}, {"alpha": -1.0}, {"beta": float("nan")}])
def test_bad_arguments_are_named(bad: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        synthetic(**bad)
