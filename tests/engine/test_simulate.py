"""The loop: weights, local work, who is drawn, what is measured and written."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, close, model, o, population, same
from fedmime.engine.metrics import mean_metrics
from fedmime.engine.sampling import Schedule
from reference import problems as ref_problems

SIZES = [4, 7, 1, 9, 5, 6, 0, 3]
CLIENTS = population(SIZES)
ETA = 0.1
ALL = sum(n > 0 for n in SIZES)


def _schedule(**changes) -> Schedule:
    return Schedule(
        **{"cohort_size": 4, "batch_size": 4, "epochs": 1, "steps": None, "seed": 0, "weights": "examples"} | changes
    )


def _simulate(algorithm=None, rounds: int = 1, **options) -> fm.Run:
    options = {"cohort_size": ALL, "batch_size": 4, "initial": model()} | options
    return fm.simulate(algorithm or a.fedavg(ETA), PROBLEM, CLIENTS, rounds, **options)


@pytest.mark.parametrize("weights", ["examples", "uniform"])
@pytest.mark.parametrize(
    "algorithm", [a.fedavg(ETA), a.server_only(o.sgd(), ETA), a.mime(o.sgd(), ETA)], ids=["fedavg", "server", "mime"]
)
def test_clients_weigh_by_examples_or_alike(algorithm, weights: str) -> None:
    """One full-batch step on everybody: x - eta sum_i w_i grad f_i(x)."""
    run = _simulate(algorithm, batch_size=None, steps=1, weights=weights)
    share = np.asarray([n if weights == "examples" else 1.0 for n in SIZES if n])
    gradients = [ref_problems.logistic().grad(model(), CLIENTS.client_at(i)) for i, n in enumerate(SIZES) if n]
    mean = {k: np.tensordot(share / share.sum(), np.stack([g[k] for g in gradients]), 1) for k in model()}
    close(run.params, {k: v - ETA * mean[k] for k, v in model().items()})


def test_uniform_weights_differ_from_examples() -> None:
    assert not same(_simulate(weights="uniform").params, _simulate(weights="examples").params)


def _steps(**changes) -> list[int]:
    cohort = _schedule(cohort_size=ALL, **changes).cohort(a.fedavg(ETA), CLIENTS, 0)
    return [m.steps for m in sorted(cohort.members, key=lambda m: m.client)]


def test_local_work_counts_epochs_or_steps() -> None:
    per_epoch = [-(-n // 4) for n in SIZES if n]
    assert _steps() == per_epoch
    assert _steps(epochs=3) == [3 * k for k in per_epoch]
    assert _steps(epochs=None, steps=5) == [5] * ALL
    assert _steps(epochs=2, batch_size=None) == [2] * ALL
    run = _simulate()
    assert run.history["steps"].tolist() == [sum(per_epoch)]
    assert run.history["examples"].tolist() == [sum(SIZES)]


def test_epochs_are_the_default_and_as_many_steps_the_same() -> None:
    clients = population([8, 8, 8])
    runs = [
        fm.simulate(a.fedavg(ETA), PROBLEM, clients, 2, 3, 3, initial=model(), **work)
        for work in ({"epochs": 2}, {"steps": 6}, {"epochs": 1}, {})
    ]
    assert same(runs[0].params, runs[1].params)
    assert same(runs[2].params, runs[3].params)
    assert not same(runs[0].params, runs[2].params)


def test_no_batch_size_means_all_examples() -> None:
    clients = population([6, 6, 6])
    runs = [fm.simulate(a.fedavg(ETA), PROBLEM, clients, 2, 3, size, 2, initial=model()) for size in (None, 6)]
    assert same(runs[0].params, runs[1].params)


def test_split_cohorts_train_one_half_and_ask_the_other() -> None:
    """With split cohorts MimeLite's model moves by the first half only and its statistics by the second."""
    algorithm = a.mime_lite(o.momentum(0.5), ETA, split=True)
    run = _simulate(algorithm, cohort_size=4, batch_size=None, steps=1)
    trainers, others = (
        [CLIENTS.client_at(m.client) for m in group]
        for cohort in [_schedule(batch_size=None, steps=1, epochs=None).cohort(algorithm, CLIENTS, 0)]
        for group in (cohort.training, cohort.probing)
    )

    def mean(group):
        pooled = {k: np.concatenate([data[k] for data in group]) for k in ("x", "y")}
        return ref_problems.logistic().grad(model(), pooled)

    close(run.params, {k: v - ETA * 0.5 * mean(trainers)[k] for k, v in model().items()})
    close(run.state.server.s.tree, {k: 0.5 * v for k, v in mean(others).items()})


def test_centralized_steps_through_its_draws() -> None:
    """The base optimizer on the drawn mini-batches, in NumPy."""
    schedule = _schedule(cohort_size=ALL)
    algorithm = a.centralized(o.momentum(0.5), ETA)
    pooled = schedule.cohort(algorithm, CLIENTS, 0).source
    x, m = model(), {k: np.zeros_like(v) for k, v in model().items()}
    for rows, count in zip(*pooled.batches(0), strict=True):
        g = ref_problems.logistic().grad(x, {k: v[rows[:count]] for k, v in pooled.examples(0).items()})
        m = {k: 0.5 * g[k] + 0.5 * m[k] for k in x}
        x = {k: x[k] - ETA * m[k] for k in x}
    close(_simulate(algorithm).params, x)


def test_evaluates_when_due_and_at_the_end() -> None:
    run = _simulate(rounds=5, evaluate_every=2)
    measured = ~np.isnan(run.history["test_accuracy"])
    assert measured.tolist() == [False, True, False, True, True]
    assert (
        run.history["test_accuracy"][-1]
        == mean_metrics(fm.backends.local().start(PROBLEM, run.params), run.params, CLIENTS.test)["accuracy"]
    )


def test_metrics_are_written_line_by_line(tmp_path: Path) -> None:
    told = []
    run = _simulate(
        rounds=3, evaluate_every=2, run_dir=tmp_path / "new" / "run", on_round=lambda *what: told.append(what)
    )
    lines = [json.loads(line) for line in (tmp_path / "new" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2]
    assert [line["loss"] for line in lines] == run.history["loss"].tolist()
    assert ["test_loss" in line for line in lines] == [False, True, True]
    assert [info.round for info, _ in told] == [0, 1, 2]
    both = ["test_accuracy", "test_loss"]
    assert [sorted(measured) for _, measured in told] == [[], both, both]


def test_starts_from_the_given_model_or_from_the_problem() -> None:
    start = model()
    run = _simulate(initial=start)
    assert same(start, model())
    assert not same(run.params, start)
    own = [_simulate(initial=None, seed=seed).params for seed in (0, 0, 1)]
    assert same(own[0], own[1])
    assert not same(own[0], own[2])


def test_one_device_and_two_agree() -> None:
    one, two = (_simulate(a.mime(o.momentum(), ETA), rounds=3, devices=devices) for devices in (1, 2))
    close(one.params, two.params, 1e-10)


def test_population_without_test_set_measures_nothing() -> None:
    clients = fm.data.from_arrays({"a": CLIENTS.client_at(0), "b": CLIENTS.client_at(1)})
    run = fm.simulate(a.fedavg(ETA), PROBLEM, clients, 2, 2)
    assert not [name for name in run.history if name.startswith("test_")]
