"""Tuning on a centralized sample, and how far that is from the federated optimum."""

import dataclasses

import pytest

from fedmime.errors import ConfigError
from fedmime.experiments.setting import Inner, Optimizer, Setting
from fedmime.experiments.tune import tune

FEDAVG = Setting(task="digits-logistic", algorithm="fedavg", rounds=4, cohort=5, evaluate_every=2)


def test_the_choice_and_its_distance() -> None:
    found = tune(FEDAVG, (1.0, 0.1, 1e-4), clients=10, rounds=4, check=True)
    facts = found.facts()
    assert facts["eta"] in (1.0, 0.1)
    assert found.central.setting.algorithm == "centralized"
    assert found.federated is not None
    carried = {trial.values["eta"]: trial.score(4) for trial in found.federated.trials}
    assert facts["federated_accuracy"] == max(carried.values())
    assert facts["lost"] == pytest.approx(max(carried.values()) - carried[facts["eta"]])
    assert facts["decades_apart"] <= 1


def test_server_numbers_are_no_matter_of_the_sample() -> None:
    setting = dataclasses.replace(FEDAVG, base="adam", optimizer=Optimizer(eps=1e-3))
    found = tune(setting, (1.0, 0.1), clients=10, rounds=4)
    assert found.central.setting.base == "sgd"
    assert found.federated is None
    assert "federated_eta" not in found.facts()


def test_the_sample_is_trained_by_the_clients_own_optimizer() -> None:
    inner = Inner(optimizer="adamw", weight_decay=0.2)
    setting = dataclasses.replace(FEDAVG, base="adam", optimizer=Optimizer(eps=1e-3), client=inner)
    central = tune(setting, (0.1, 0.01), clients=10, rounds=4).central.setting
    assert (central.base, central.optimizer, central.client) == ("adamw", Optimizer(weight_decay=0.2), Inner())


def test_a_sample_larger_than_the_population_is_refused() -> None:
    with pytest.raises(ConfigError, match="clients=1000 exceeds the 50 clients"):
        tune(FEDAVG, clients=1000)
