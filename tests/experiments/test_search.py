"""The adapter to Optuna, with a stand-in where Optuna is not installed."""

import sys
import types

import pytest

from fedmime.errors import ConfigError
from fedmime.experiments.setting import Setting
from fedmime.experiments.sweep_search import search

FEDAVG = Setting(task="digits-logistic", algorithm="fedavg", rounds=4, cohort=5, evaluate_every=1, drift=False)


class Pruned(Exception):
    pass


class Trial:
    def __init__(self, value: float, patience: int) -> None:
        self.value, self.patience, self.reported = value, patience, []

    def suggest_float(self, name: str, low: float, high: float, log: bool) -> float:
        assert (name, low, high, log) == ("eta", 1e-3, 1.0, True)
        return self.value

    def report(self, score: float, step: int) -> None:
        self.reported.append((step, score))

    def should_prune(self) -> bool:
        return len(self.reported) >= self.patience


class Study:
    def __init__(self, trials: list[Trial]) -> None:
        self.trials, self.values = trials, []

    def optimize(self, objective, n_trials: int) -> None:
        for trial in self.trials[:n_trials]:
            try:
                self.values.append(objective(trial))
            except Pruned:
                self.values.append(None)


@pytest.fixture
def stand_in(monkeypatch):
    module = types.ModuleType("optuna")
    module.TrialPruned = Pruned
    monkeypatch.setitem(sys.modules, "optuna", module)


def test_points_are_scored_and_given_up(stand_in) -> None:
    study = Study([Trial(0.5, 9), Trial(1e30, 9), Trial(0.1, 2)])
    search(FEDAVG, {"eta": (1e-3, 1.0)}, 3, study=study)
    good, lost, pruned = study.trials
    assert study.values[0] == good.reported[-1][1]
    assert study.values[1:] == [None, None]
    assert [step for step, _ in good.reported] == [1, 2, 4]
    assert len(pruned.reported) == 2
    assert all(step < 4 for step, _ in lost.reported)


def test_refusals(stand_in) -> None:
    with pytest.raises(ConfigError, match="an axis is one of"):
        search(FEDAVG, {"cohort": (1, 2)})
    with pytest.raises(ConfigError, match="eta must rise"):
        search(FEDAVG, {"eta": (1.0, 0.1)})


def test_without_optuna(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"fedmime\[search\]"):
        search(FEDAVG, {"eta": (1e-3, 1.0)})
