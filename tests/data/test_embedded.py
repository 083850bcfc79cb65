"""The populations that need no files: digits and Synthetic(alpha, beta)."""

import numpy as np
import pytest

from fedmime.data import digits, synthetic
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
