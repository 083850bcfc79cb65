"""The paper's figures at the smallest scale, and the numbers of those that are exact."""

import dataclasses
import html
import itertools
import json
from typing import get_args, get_type_hints

import jax
import numpy as np
import pytest

from fedmime.aggregation.accounting import Ledger, Sampling, epsilon
from fedmime.aggregation.communication import cost
from fedmime.cli import reproduce as cli
from fedmime.errors import ConfigError
from fedmime.experiments import (
    ablation,
    accuracies,
    accuracies_report,
    best_rate,
    communication,
    compression,
    drift,
    privacy,
    recipes,
    steps,
    tasks,
    train,
)
from fedmime.experiments.reproduce import TITLES, reproduce
from fedmime.experiments.reproduce_order import Order, tune
from fedmime.experiments.setting import Setting
from fedmime.experiments.steps_path import errors
from fedmime.experiments.sweep import Swept
from fedmime.experiments.sweep_trial import Trial


@pytest.fixture(scope="module")
def two_paths(tmp_path_factory):
    return reproduce("drift", "smoke", out=tmp_path_factory.mktemp("drift")).data


SMOKE = [
    "ablation",
    "steps",
    "accuracies",
    "stability",
    "communication",
    "theory",
    "compression",
    "privacy",
    "sparsity",
]


@pytest.mark.usefixtures("few_writers")
@pytest.mark.parametrize("name", SMOKE)
def test_smoke(name: str, tmp_path, monkeypatch) -> None:
    found = reproduce(name, "smoke", out=tmp_path)
    files = {path.name for path in found.files}
    assert {"data.json", "report.html"} <= files
    assert any(file.endswith(".pdf") for file in files)
    assert json.loads((tmp_path / "data.json").read_text()) == json.loads(json.dumps(found.data))
    page = (tmp_path / "report.html").read_text()
    assert all(html.escape(title, quote=False).replace("'", "&#39;") in page for title, _ in found.tables)
    if name not in ("communication", "theory"):
        monkeypatch.setattr("fedmime.experiments.reproduce.save", lambda *_: [])  # drawn above
        monkeypatch.setattr("fedmime.report.html.write", lambda path, *_, **__: path)
        again = reproduce(name, "smoke", out=tmp_path, progress=lambda *_: pytest.fail("ran again"))
        assert again.data == found.data


def test_the_command_line_names_every_reproduction() -> None:
    names = get_args(get_type_hints(cli.Reproduce)["name"])
    assert names == tuple(TITLES)


def test_eight_bits_both_ways_cost_about_a_quarter() -> None:
    task = tasks.get("digits-two-labels")
    model = task.problem().init(jax.random.key(0))
    for method in compression.METHODS.values():
        algorithm = recipes.algorithm(recipes.resolved(Setting(task.name, **method), task))
        with jax.enable_x64(False):
            plain, encoded = (cost(algorithm, model, e.aggregator).bytes for e in compression.ENCODINGS[:2])
        assert 0.25 < encoded / plain < 0.27


def test_a_private_method_pays_for_every_release() -> None:
    sampling = Sampling("poisson", 100, 3400)
    one, two = (privacy.mechanism(2.0, sampling, 50, k).noise_multiplier for k in (1, 2))
    assert two == pytest.approx(np.sqrt(2) * one, rel=1e-3)
    assert epsilon(Ledger(two, sampling).add(2, 50), privacy.DELTA) == pytest.approx(2.0, rel=1e-3)


def test_the_rate_with_the_highest_mean_over_the_deciding_seeds_is_taken(tmp_path, monkeypatch) -> None:
    scores = {(1.0, 0): 0.4, (1.0, 1): 0.2, (0.1, 0): 0.3, (0.1, 1): 0.5, (10.0, 0): None, (10.0, 1): 0.9}

    def run(prepared):
        score = scores[prepared.setting.eta, prepared.setting.seed]
        return {"after": [2], "accuracy": [score], "bytes": [8], "epsilon": None} if score else dict(EMPTY)

    monkeypatch.setattr(best_rate, "_run", run)
    order, setting = Order("smoke", tmp_path), Setting("digits-logistic", "fedavg", "sgd", rounds=2)
    asked = [order, setting, (10.0, 1.0, 0.1), range(2), None, lambda: None]
    by_all, by_first = best_rate.at_best_rate(*asked), best_rate.at_best_rate(*asked, deciding=1)
    assert (by_all["eta"], by_all["score"], by_all["at_edge"]) == (0.1, [0.3, 0.5], True)
    assert (by_first["eta"], by_first["score"], by_first["at_edge"]) == (1.0, [0.4, 0.2], False)
    assert by_all["tried"][0] == {"eta": 10.0, "score": None}
    assert best_rate.rounds_to(by_all, 0.4) == 2
    assert best_rate.rounds_to(by_all, 0.5) is None


EMPTY = {"after": [], "accuracy": [], "bytes": [], "epsilon": None}


def test_drift_ends_where_the_paper_says(two_paths) -> None:
    data = two_paths
    assert data["apart"] > 0.3
    assert data["to_optimum"]["Mime"] < 1e-12
    assert data["to_mean_of_optima"]["FedAvg"] < 1e-12
    assert data["to_optimum"]["FedAvg"] == pytest.approx(data["apart"])
    assert np.asarray(data["optimum"]) == pytest.approx(np.linalg.solve(*_mean_loss()))


def _mean_loss():
    two = drift.two_clients()
    assert np.linalg.eigvalsh(two.hessians).min() > 0
    return two.hessians.mean(axis=0), two.linear.mean(axis=0)


def test_local_steps_drawn_are_those_of_the_engine(two_paths) -> None:
    server = np.asarray(two_paths["paths"]["Mime"])[:8]
    ends = drift.local_steps("Mime", drift.two_clients(), server)[:, :, -1].mean(axis=1)
    np.testing.assert_allclose(ends[:-1], server[1:], atol=1e-12)


def test_cohorts_are_the_paper_s(tmp_path) -> None:
    rows = reproduce("communication", "smoke", out=tmp_path).data["rows"]
    assert [row["method"] for row in rows] == list(communication.PAPER)
    for row in rows:
        assert row["model_sizes"] == pytest.approx(row["paper_model_sizes"], abs=1e-3)
        assert row["cohorts"] == row["paper_cohorts"]


def test_twelve_methods_in_the_paper_s_order() -> None:
    names = list(accuracies.methods())
    assert names[:3] == ["FedAvgSGD", "MimeLiteSGD", "MimeSGD"]
    assert {len(column) for column in accuracies.PAPER.values()} == {len(names)}


def test_fedavg_with_momentum_has_a_row_that_starts_as_fast_as_without() -> None:
    name = "FedAvg, server rate 10"
    for scale in (*ablation.SCALES.values(), *(each.runs for each in steps.SCALES.values())):
        assert {"FedAvg", name} <= set(scale.methods)
    damped, rate = (ablation.METHODS["FedAvg"], ablation.METHODS[name])
    assert rate == damped | {"eta_server": 10.0}
    assert accuracies.BESIDE["FedAvgMom, server rate 10"] == accuracies.methods()["FedAvgMom"] | {"eta_server": 10.0}


def test_a_row_that_the_paper_does_not_have_is_told_without_its_number() -> None:
    facts = {"column": "logistic", "task": "digits-logistic", "rounds": 4, "cohort": 5, "pairs": False, "eta": 0.1}
    rows = [
        facts | {"at_edge": [], "accuracy": [0.5], "method": method, "paper": paper}
        for method, paper in {"FedAvgMom": 0.6, "MimeMom": 0.7, **dict.fromkeys(["FedAvgMom, server rate 10"])}.items()
    ]
    (section,) = accuracies_report.sections({"setting": {"seeds": 1}, "rows": rows})
    assert section.table is not None
    assert [row[4:] for row in section.table.rows] == [["60.0%", "", ""], ["70.0%", "+0.0", "+10.0"], ["–", "", ""]]


def test_ranks_are_held_against_the_paper_s() -> None:
    def rows(ours):
        told = zip(
            ("FedAvgSGD", "MimeLiteSGD", "MimeSGD", "MimeAdam", "FedAvgAdam"),
            (0.5, 0.5, 0.6, 0.7, 0.1),
            ours,
            strict=True,
        )
        return [{"method": method, "paper": paper, "accuracy": found} for method, paper, found in told]

    assert accuracies_report.rank_correlation(rows([[0.2], [0.9], [0.3], [0.4], [None]])) == pytest.approx(1)
    assert accuracies_report.rank_correlation(rows([[0.3], [0.9], [0.2], [0.1], [0.4]])) == pytest.approx(-1)
    assert accuracies_report.rank_correlation(rows([[0.3], [0.9], [0.2], [0.2], [0.2]])) is None


@pytest.mark.parametrize(
    ("best", "tried", "edge"), [(0.1, [], []), (1e2, [10**0.5, 10.0], ["eta"]), (10**-2.2, [10**-2.5], [])]
)
def test_rates_beyond_the_grid_are_tried_until_the_best_lies_inside(best, tried, edge, tmp_path, monkeypatch) -> None:
    asked = []

    def known(setting, grid, **_):
        asked.append(grid["eta"])
        trials = [Trial({"eta": eta}, "", [4], [-abs(np.log(eta / best))], done=4) for eta in grid["eta"]]
        return Swept(setting, "", dict(grid), 4, trials, None, len(trials))

    monkeypatch.setattr("fedmime.experiments.reproduce_order.sweep", known)
    found = tune(Order("smoke", tmp_path), Setting(), {"eta": (1.0, 0.1, 0.01)}, finer=False, beyond=2)
    assert [rates[0] for rates in asked[1:]] == pytest.approx(tried)
    assert found.at_edge == edge
    assert found.runs == 3 + len(tried)


def test_a_method_that_diverges_at_every_rate_is_told_as_such(tmp_path, monkeypatch) -> None:
    def lost(setting, grid, **_):
        trials = [Trial({"eta": eta}, "", done=3, diverged=True) for eta in grid["eta"]]
        return Swept(setting, "", dict(grid), 4, trials, None, len(trials))

    monkeypatch.setattr("fedmime.experiments.reproduce_order.sweep", lost)
    found = tune(Order("smoke", tmp_path), Setting(), {"eta": (1.0, 0.1)}, finer=True, beyond=2)
    assert (found.values, found.score, found.at_edge) == ({"eta": 0.1}, None, [])
    assert [point["diverged"] for point in found.tried] == [True, True]


def test_columns_of_the_table_and_a_share_of_its_rounds(tmp_path) -> None:
    small = accuracies.SCALES["small"]
    order = Order("small", tmp_path, data_dir=tmp_path, columns=("cnn", "stackoverflow"), share=0.1)
    assert [column[:2] for column in accuracies.columns(order, small)] == [("cnn", 20), ("stackoverflow", 10)]
    embedded = Order("small", tmp_path)
    assert [column[:2] for column in accuracies.columns(embedded, small)] == [("logistic", 300), ("cnn", 200)]
    with pytest.raises(ConfigError, match="column 'shakespeare' needs the published files; pass data_dir"):
        accuracies.columns(dataclasses.replace(embedded, columns=("shakespeare",)), small)


def test_the_correction_is_exact_at_x_and_wears_off() -> None:
    prepared = train.prepare(Setting("digits-logistic", "fedavg", "sgd", eta=0.1, cohort=5, rounds=1))
    x = prepared.problem.init(jax.random.key(0))
    for path in errors(prepared, x, 0.0, (1, 3), 4, lambda: None)["methods"].values():
        assert path["moved"] == [0, 0]
        assert max(path["corrected"]) < 1e-5 < 0.1 < min(path["plain"])
    ticks = itertools.count()
    path = errors(prepared, x, 0.1, (1, 8), 4, lambda: next(ticks))["methods"]["Mime"]
    assert next(ticks) == 2 * 4
    assert path["corrected"][0] < min(path["corrected"][1], path["plain"][0])
    assert path["loss"][1] < path["loss"][0]


def test_rounds_to_the_accuracy_of_fedavg() -> None:
    curves = {"FedAvg": [[0.1, 0.4, 0.6], [0.3, 0.4, 0.4]], "Mime": [[0.5, 0.6, 0.7], [0.5, 0.7, None]]}
    found = ablation.findings({"after": [5, 10, 15], "curves": curves})
    assert found["target"] == pytest.approx(0.5)
    assert found["rounds_to_target"] == {"FedAvg": 15, "Mime": 5}
    assert found["rounds_to_target_by_seed"] == {"FedAvg": [15, 10], "Mime": [10, 5]}
    assert found["final"]["Mime"] == [0.7, None]
    assert found["marks"]["45%"] == {"FedAvg": 15, "Mime": 5}


def test_refusals(tmp_path) -> None:
    with pytest.raises(ConfigError, match="name must be one of"):
        reproduce("figure", out=tmp_path)
    with pytest.raises(ConfigError, match="scale must be one of"):
        reproduce("drift", "tiny", out=tmp_path)
    with pytest.raises(ConfigError, match="seeds must be a whole number"):
        reproduce("drift", "smoke", seeds=0, out=tmp_path)
    with pytest.raises(ConfigError, match=r"share must lie in \(0, 1\], got 2"):
        reproduce("accuracies", "smoke", share=2, out=tmp_path)
    with pytest.raises(ConfigError, match="columns and share are options of 'accuracies', not of 'drift'"):
        reproduce("drift", "smoke", columns=("cnn",), out=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="out must be a directory"):
        reproduce("drift", "smoke", out=tmp_path / "file")
