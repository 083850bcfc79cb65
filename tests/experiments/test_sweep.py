"""Sweeps: the same numbers as separate runs, fewer rounds by halving, nothing lost when broken off."""

import csv
import dataclasses
import itertools
import json

import numpy as np
import pytest

from compiled import programs
from fedmime.errors import ConfigError, Diverged, Stopped
from fedmime.experiments import grid, halving, sweep_files, train
from fedmime.experiments import sweep as sweeps
from fedmime.experiments.setting import Optimizer, Setting
from fedmime.experiments.sweep import sweep
from fedmime.experiments.sweep_trial import Trial

RATES = (1.0, 0.1, 0.01)
MORE = (*RATES, 1e-3, 1e-4)
MIME = Setting(task="digits-logistic", algorithm="mime", rounds=6, cohort=5, evaluate_every=2, drift=False)
SCAFFOLD = Setting(task="digits-logistic", algorithm="scaffold", rounds=6, cohort=5, evaluate_every=2, drift=False)


def curves(found):
    return [(trial.rounds, trial.accuracy, trial.loss, trial.diverged) for trial in found.trials]


@pytest.fixture(scope="module")
def plain():
    return sweep(MIME, {"eta": RATES})


def test_points_equal_separate_runs_and_compile_nothing_more(plain) -> None:
    before = programs()
    for rate, trial in zip(RATES, plain.trials, strict=True):
        history = train.run(train.prepare(grid.at(MIME, {"eta": rate}))).history["test_accuracy"]
        np.testing.assert_allclose(trial.accuracy, history[~np.isnan(history)], rtol=1e-12)
    assert programs() == before
    assert plain.runs == len(RATES)


def test_other_numbers_are_axes_too(plain) -> None:
    setting = grid.at(MIME, {"eta": 0.1})
    found = sweep(setting, {"optimizer.beta": (0.9, 0.5), "eta_server": (1.0, 0.5)})
    assert len({tuple(trial.accuracy) for trial in found.trials}) == 4
    assert found.trials[0].accuracy == plain.trials[1].accuracy  # 0.9 and 1 are the defaults


@pytest.mark.parametrize("points", [2, 3, 9, 27, 567])
@pytest.mark.parametrize("rounds", [1, 7, 64, 1000])
def test_rungs_narrow_and_reach_the_end(points: int, rounds: int) -> None:
    plan = halving.rungs(points, rounds)
    assert plan[0].points == points
    assert plan[-1].rounds == rounds
    assert all(a.points > b.points and a.rounds < b.rounds for a, b in itertools.pairwise(plan))


def test_nine_points_cost_at_most_half_of_the_grid() -> None:
    assert halving.rungs(9, 64) == [(9, 16), (3, 64)]
    assert all(halving.cost(halving.rungs(9, rounds)) <= 4.5 for rounds in range(4, 400))


class Curves:
    """Points whose accuracies are known beforehand, in place of those that train."""

    def __init__(self, *curves) -> None:
        self.trials = [Trial({"eta": float(i)}, str(i)) for i in range(len(curves))]
        self._curves = curves

    def advance(self, chosen, until: int, on_round, stop) -> None:
        for trial in chosen:
            trial.rounds = list(range(1, until + 1))
            trial.accuracy = [self._curves[int(trial.values["eta"])](t) for t in trial.rounds]
            trial.done = until

    def climbed(self) -> list[float]:
        """The rates that halving takes to the end of 80 rounds."""
        sweeps._climb(self, self.trials, halving.rungs(len(self.trials), 80), None, 1, None)
        return [trial.values["eta"] for trial in self.trials if trial.done == 80]


def test_slow_starters_are_not_given_up() -> None:
    fast = [lambda t, top=0.5 + i / 100: top * (1 - 0.8**t) for i in range(7)]
    slow = [lambda t, start=start: 0.9 / (1 + np.exp((start - t) / 2)) for start in (14, 16)]  # as momentum sets in
    assert {7, 8} <= set(Curves(*fast, *slow).climbed())


def test_equal_points_go_on_in_the_order_of_the_grid() -> None:
    assert Curves(*[lambda t: 0.5] * 9).climbed() == [0, 1, 2]


def test_halving_finds_a_rate_of_momentum_that_starts_slowly() -> None:
    setting = dataclasses.replace(MIME, rounds=40, evaluate_every=5, seed=1)
    rates = {"eta": tuple(10 * rate for rate in grid.LIGHT["eta"])}
    full, halved = (sweep(setting, rates, halving=less) for less in (False, True))
    assert halved.best.score(40) > full.best.score(40) - 0.005


def test_halving_finds_the_best_for_less() -> None:
    setting = grid.at(MIME, {"rounds": 16})
    full, found = (sweep(setting, {"eta": MORE}, halving=less) for less in (False, True))
    assert found.best.values == full.best.values
    assert [trial.done for trial in found.trials] == [16, 16, 16, 4, 4]  # the slowest are stopped at a quarter
    assert found.runs == 3.5
    assert curves(found)[:3] == curves(full)[:3]


@pytest.mark.parametrize("setting", [MIME, SCAFFOLD], ids=["mime", "scaffold"])
def test_broken_off_goes_on_to_the_same_numbers(setting: Setting, tmp_path) -> None:
    calls = iter(range(100))
    with pytest.raises(Stopped):
        sweep(setting, {"eta": MORE}, halving=True, cache=tmp_path, stop=lambda: 15 if next(calls) == 13 else None)
    rounds = []
    found = sweep(setting, {"eta": MORE}, halving=True, cache=tmp_path, progress=lambda *_: rounds.append(1))
    whole = sweep(setting, {"eta": MORE}, halving=True)
    assert curves(found) == curves(whole)
    assert found.runs == whole.runs
    assert len(rounds) == 20 - 14
    again = sweep(setting, {"eta": MORE}, halving=True, cache=tmp_path, progress=lambda *_: pytest.fail("ran again"))
    assert curves(again) == curves(whole)


def test_longer_sweeps_go_on_from_shorter_ones(tmp_path, plain) -> None:
    sweep(grid.at(MIME, {"rounds": 4}), {"eta": RATES}, cache=tmp_path)
    assert curves(sweep(MIME, {"eta": RATES}, cache=tmp_path)) == curves(plain)


def test_diverged_points_are_marked_and_cost_little() -> None:
    found = sweep(MIME, {"eta": (1e30, 0.1)})
    lost, kept = found.trials
    assert lost.diverged
    assert lost.done == 3
    assert found.score(lost) is None
    assert found.best is kept
    assert found.at_edge == ["eta"]
    facts = sweep(MIME, {"eta": (1e30, 1e31)}).facts()
    assert facts["best"] is None
    with pytest.raises(Diverged, match="lower the rates"):
        _ = sweep(MIME, {"eta": (1e30, 1e31)}).best


def test_the_paper_s_grids() -> None:
    assert len(grid.points(grid.LIGHT)) == 9
    assert len(grid.points(grid.HEAVY)) == 567
    assert grid.edges(grid.LIGHT, {"eta": 0.1}) == []
    assert grid.edges(grid.LIGHT, {"eta": 1.0}) == ["eta"]
    assert grid.parse(["eta=1,0.1", "optimizer.eps=1e-3"]) == {"eta": (1.0, 0.1), "optimizer.eps": (1e-3,)}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, "the grid has no axis"),
        ({"cohort": (5, 10)}, "'cohort' is no number that a sweep varies"),
        ({"eta": ()}, "eta must be a list of at least one number"),
        ({"eta": (0.1, "x")}, "eta must be a number, got 'x'"),
        ({"eta": (0.1, 0.1)}, "eta names a value twice"),
        ({"eta": (-0.1,)}, "eta must not be negative, got -0.1"),
    ],
)
def test_refusals(asked, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        sweep(MIME, asked)


@pytest.mark.parametrize("words", [["eta"], ["eta="], ["eta=a"], ["eta=1", "eta=2"], ["mo=1"]])
def test_words_that_are_no_axis(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="sweep: "):
        grid.parse(words)


def test_numbers_of_another_optimizer_are_refused() -> None:
    with pytest.raises(ConfigError, match="eps is no number of momentum"):
        sweep(MIME, {"optimizer.eps": (1e-3,)})


def test_files_say_everything(tmp_path) -> None:
    adam = Setting(
        task="digits-logistic", algorithm="fedavg", base="adam", optimizer=Optimizer(), rounds=2, cohort=5, drift=False
    )
    found = sweep(adam, {"eta_server": (1.0, 0.1), "optimizer.eps": (1e-3, 1e-7, 1e-1)})
    names = {path.name for path in sweep_files.write(found, tmp_path)}
    assert names == {"sweep.json", "sweep.csv", "sweep.png", "sweep.pdf", "sweep.html"}
    facts = json.loads((tmp_path / "sweep.json").read_text())
    assert facts["best"] == found.best.values
    assert len(facts["points"]) == 6
    rows = list(csv.DictReader((tmp_path / "sweep.csv").read_text().splitlines()))
    best = max(rows, key=lambda row: float(row["accuracy"] or 0))
    assert float(best["accuracy"]) == found.best.score(2)
    page = (tmp_path / "sweep.html").read_text()
    assert "lies on the edge of the grid" in page
    assert sweep_files.best_by(found, "eta_server", "optimizer.eps").shape == (2, 3)
