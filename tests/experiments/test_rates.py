"""The best rate is that at which most seeds reach the target, and soonest."""

import numpy as np
import pytest

from fedmime.errors import ConfigError
from fedmime.experiments import rates, train
from fedmime.experiments.rates import Tried
from fedmime.experiments.setting import Setting


def test_the_best_rate() -> None:
    found = Tried((0.1, 1.0, 10.0), [[None, None], [40, 50], [10, None]], [[0.2, 0.4], [0.0, 0.0], [0.0, 0.1]])
    assert (found.best, found.at_edge) == (1.0, False)
    assert found.words() == ["0.3 off", "45", "10 (1/2)"]
    assert found.verdict() == "1"
    never = Tried((0.1, 1.0), [[None], [None]], [[0.2], [np.inf]])
    assert (never.best, never.verdict()) == (0.1, "0.1 (edge)")


def test_rounds_are_those_of_runs() -> None:
    """A sweep's points reach a training loss and an accuracy when runs of their own do."""
    for fields in ({"task": "annotators", "target_gap": 0.6}, {"task": "digits-two-labels", "target": 0.5}):
        setting = Setting(**fields, algorithm="server_only", rounds=12, evaluate_every=2)
        prepared = [train.prepare(Setting(**vars(setting) | {"seed": seed})) for seed in (0, 1)]
        found = rates.tried("Server-only", prepared, (10.0, 0.001))
        for seed in (0, 1):
            asked = train.prepare(Setting(**vars(setting) | {"seed": seed, "eta": 10.0}))
            target = rates.targets.asked(vars(asked.setting))
            assert target is not None
            assert found.rounds[0][seed] == target.rounds(train.run(asked).history)
        assert found.rounds[0][0] is not None
        assert found.rounds[1] == [None, None]
        assert found.best == 10.0


def test_a_target_is_needed() -> None:
    prepared = train.prepare(Setting(task="digits-logistic"))
    aimless = train.dataclasses.replace(prepared, setting=train.dataclasses.replace(prepared.setting, target=None))
    with pytest.raises(ConfigError, match="rates: FedAvg has no target"):
        rates.tried("FedAvg", [aimless], (0.1,))
