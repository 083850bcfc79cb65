"""The back end on Ray gives the numbers of the local one, for every kind of algorithm, loss and message."""

from __future__ import annotations

import collections
import inspect
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.backends.ray.losses import FAILING, FAILING_LATER, NOISY, counting, tripled, watched
from engine.backends.ray.running.setting import MIME, MODES, OWN, ROUNDS, SIZES, agree, expected, run, unbroken, workers
from engine.setting import EVERY, FURTHER, KINDS, PROBLEM, close, population, same
from fedmime.engine.backends.specification import Ray
from marking import fast

_ALIKE = {"fedavg-adam", "fedprox", "loc_mime", "server_only_mvr", "fedavg-client", "fedexp", "ghbm", *FURTHER}


def test_every_algorithm_is_among_them() -> None:
    factories = {name for name in fm.algorithms.__all__ if inspect.isfunction(getattr(fm.algorithms, name))}
    assert {kind.partition("-")[0].removeprefix("loc_") for kind in EVERY} == factories - {"params"}


@pytest.mark.parametrize("kind", fast(EVERY, _ALIKE))
def test_every_kind_of_algorithm(ray: Ray, kind: str) -> None:
    agree(run(EVERY[kind], ray), expected(kind))


@pytest.mark.parametrize("mode", fast(MODES, MODES.keys() - {"drop-out"}))
def test_every_mode(ray: Ray, mode: str) -> None:
    """Cohorts of which some never report, other weights, messages and losses."""
    agree(run(EVERY["mime-adam"], ray, **MODES[mode]), expected("mime-adam", mode))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_number_of_workers(ray: Ray, count: int, mode: str, fact: Any) -> None:
    with fm.backends.ray(workers=count) as others:
        for kind, algorithm in EVERY.items():
            if algorithm.pooled and mode == "chain":  # one place has all data, so that no message is encoded
                continue
            ours = run(algorithm, others, **MODES[mode])
            agree(ours, expected(kind, mode))
            assert same(ours.state, run(algorithm, others, **MODES[mode]).state), kind
            fact(f"kinds of algorithms on {count} workers, {mode}: 1e-12 from local, and the same bits again")


@pytest.mark.parametrize("kind", ["mime-adam", "scaffold"])
def test_more_parts_than_workers(ray: Ray, kind: str) -> None:
    finer = fm.backends.ray(workers=2, parts=2)
    ours = run(KINDS[kind], finer)
    agree(ours, expected(kind))
    assert same(ours.state, run(KINDS[kind], finer).state)
    assert workers(finer) is workers()


def test_two_runs_are_bit_identical(ray: Ray) -> None:
    assert same(unbroken("mime-adam").state, run(KINDS["mime-adam"], ray).state)


AGGREGATIONS = {
    "quantize": fm.aggregation.quantize(bits=4),
    "clip and quantize": fm.aggregation.chain(fm.aggregation.clip(0.1), fm.aggregation.quantize(bits=8)),
    "median": fm.aggregation.median(),
    "error feedback": fm.aggregation.error_feedback(fm.aggregation.top_k(0.3)),
}


@pytest.mark.parametrize("name", fast(AGGREGATIONS, {"quantize"}))
def test_aggregation(ray: Ray, name: str) -> None:
    ours, theirs = (run(MIME, backend, aggregation=AGGREGATIONS[name], drift=True) for backend in (ray, "local"))
    agree(ours, theirs)
    if ours.state.memory is not None:
        clients = range(len(SIZES))
        close(ours.state.memory.read(clients), theirs.state.memory.read(clients))


def test_adaptive_clipping_takes_the_norms_of_the_state(ray: Ray) -> None:
    private = fm.aggregation.gaussian(0.5, quantile=0.5, noise_multiplier=0.1)
    ours, theirs = (run(MIME, b, aggregation=private, weights="uniform") for b in (ray, "local"))
    agree(ours, theirs)


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_random_losses(ray: Ray, weights: str) -> None:
    ours, theirs = (run(MIME, backend, NOISY, weights=weights) for backend in (ray, "local"))
    agree(ours, theirs)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_models_with_factors(ray: Ray, dtype: Any, tolerance: float, tmp_path: Path) -> None:
    """A worker takes the gradient at x once a round, in phase 1, where its local steps find the factors."""
    file = tmp_path / "computed"
    problem = watched(fm.models.mlp((2, 2), 3, (5,)), file)
    rng = np.random.default_rng(0)
    clients = {f"c{i}": {"x": rng.random((n, 2, 2)), "y": rng.integers(0, 3, n, np.int32)} for i, n in enumerate(SIZES)}
    initial = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), problem.init(jax.random.key(0)))
    given = (MIME, problem, fm.data.from_arrays(clients), ROUNDS, 5, 4)
    ours, theirs = (fm.simulate(*given, initial=initial, backend=backend) for backend in (ray, "local"))
    close(ours.state.server, theirs.state.server, tolerance)
    computed = collections.Counter(file.read_text().split())
    assert computed.keys() == {"recorded", "difference"}  # never a gradient by itself
    assert computed["recorded"] == 2 * ROUNDS  # two workers; all examples of a worker's clients are one chunk
    assert {leaf.dtype for leaf in jax.tree.leaves(fm.params(ours.state))} == {np.dtype(dtype)}


def test_a_recipe_of_the_users_own(ray: Ray) -> None:
    algorithm = tripled(0.1)
    agree(run(algorithm, ray), run(algorithm, "local"))


@pytest.mark.parametrize("kind", ["scaffold", "feddyn", "fedvarp"])
def test_workers_write_what_clients_keep(ray: Ray, kind: str, tmp_path: Path) -> None:
    """With a directory, values are in its file: they do not pass through the driver, and resume finds them."""
    algorithm = KINDS[kind]
    kept = run(algorithm, ray, run_dir=tmp_path / "run", rounds=ROUNDS, saving=fm.Saving(every=2))
    assert same(kept.state.server, unbroken(kind).state.server)
    clients = range(len(SIZES))
    assert same(kept.state.memory.read(clients), unbroken(kind).state.memory.read(clients))
    assert (kept.history["bytes_gathered"] < unbroken(kind).history["bytes_gathered"]).all()
    assert not kept.state.memory._taken
    assert not list((tmp_path / "run").glob(".*.tmp"))
    further = run(algorithm, ray, run_dir=tmp_path / "run", rounds=ROUNDS + 2)
    whole = run(algorithm, ray, run_dir=tmp_path / "other", rounds=ROUNDS + 2)
    assert same(further.state.server, whole.state.server)
    assert same(further.state.memory.read(clients), whole.state.memory.read(clients))


def test_rounds_on_explicit_data(ray: Ray) -> None:
    rng = np.random.default_rng(3)
    batches = [{"x": rng.normal(size=(k, 2, 4)), "y": rng.integers(0, 3, (k, 2))} for k in (3, 1, 2)]
    batches[1]["x"][0, 0, 0] = np.nan
    cohort = fm.Cohort.from_batches(batches, ids=[7, 2, 9], population=12)
    algorithm = fm.algorithms.scaffold(0.1)
    ends = []
    for backend in (ray, "local"):
        state = algorithm.init(PROBLEM.init(jax.random.key(0)))
        for _ in range(2):
            state, info = fm.run_round(algorithm, PROBLEM, state, cohort, backend=backend)
        ends.append((state, info))
    (ours, told), (theirs, expected_) = ends
    close(ours.server, theirs.server)
    close(ours.memory.read(range(12)), theirs.memory.read(range(12)))
    assert told.refused == expected_.refused == (2,)
    assert told.reasons == {"data": 1}


def test_a_cohort_without_members_is_abandoned(ray: Ray) -> None:
    never = fm.Participation(drop_out=1.0)
    ended = run(KINDS["fedavg"], ray, participation=never, gate=fm.Gate(patience=10))
    assert ended.history["abandoned"].all()


def test_a_store_is_opened_by_its_path(ray: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    population(SIZES).save(tmp_path / "store")
    stored = fm.data.from_store(tmp_path / "store")
    options = {"seed": 1, "evaluate_every": ROUNDS}
    ours = fm.simulate(KINDS["mime-adam"], PROBLEM, stored, ROUNDS, 6, 4, backend=ray, **options)
    agree(ours, expected("mime-adam"))
    elsewhere = stored.origin._replace(arguments=(str(tmp_path / "elsewhere"),))
    with pytest.raises(fm.DataError, match="elsewhere"):
        fm.simulate(KINDS["fedavg"], PROBLEM, stored.made_by(elsewhere), 1, 2, backend=ray)


def test_a_named_problem_is_made_by_the_workers(ray: Ray) -> None:
    problem = fm.backends.by_name("engine.backends.ray.losses:telling")
    with pytest.raises(ArithmeticError, match="made on a worker"):
        run(MIME, ray, problem)


def test_bad_clients_are_named_once(ray: Ray, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    clients = {f"c{i}": {"x": rng.normal(size=(3, 4)), "y": rng.integers(0, 3, 3)} for i in range(4)}
    clients["c2"]["x"][1, 1] = np.inf
    fm.data.from_arrays(clients).save(tmp_path / "store")
    stored = fm.data.from_store(tmp_path / "store")
    ended = fm.simulate(KINDS["fedavg"], PROBLEM, stored, 3, 4, backend=ray)
    assert ended.history["refused"].tolist() == [1, 1, 1]
    assert sum("'c2'" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("problem", [FAILING, FAILING_LATER], ids=["traced", "computed"])
def test_an_error_in_a_loss_ends_the_run(ray: Ray, problem: Any) -> None:
    seats = list(workers().seats)
    with pytest.raises(Exception, match="no such number"):
        run(KINDS["fedavg"], ray, problem)
    assert workers().seats == seats  # nobody was blamed for it


def test_nothing_is_compiled_after_the_second_round(ray: Ray, tmp_path: Path) -> None:
    """Table sizes are reserved for a part's share; a process traces the loss only when it compiles.

    The driver evaluates after every round, so that its own program is there after the first one, too.
    """
    rng = np.random.default_rng(0)
    drawn = population(rng.integers(1, 40, 60).tolist())
    counts, file = [], tmp_path / "traced"
    problem = counting(file)
    options = {"evaluate_every": 1, "on_round": lambda *_: counts.append(file.stat().st_size)}
    fm.simulate(MIME, problem, drawn, 8, 10, 4, backend=ray, **options)
    assert counts[1] == counts[-1] > 0


def test_a_run_tells_what_travelled_and_who_computed(ray: Ray, tmp_path: Path) -> None:
    ended = run(MIME, ray, run_dir=tmp_path / "run")
    model = sum(leaf.nbytes for leaf in jax.tree.leaves(fm.params(ended.state)))
    rows = fm.Run.load(tmp_path / "run").history
    assert ended.history.keys() >= OWN
    assert rows["workers"].tolist() == [2] * ROUNDS
    assert rows["workers_lost"].tolist() == [0] * ROUNDS
    sent = rows["bytes_broadcast"]  # x for the gradients; the mean gradient and the momentum for training; and numbers
    assert (sent >= 3 * model).all()
    assert (sent < 3 * model + 64).all()
    assert (rows["bytes_gathered"] >= 4 * model).all()  # two parts' gradients, and two parts' updates
    timings = (tmp_path / "run" / "timings.jsonl").read_text()
    assert timings.count("seconds_broadcast") == timings.count("seconds_gather") == ROUNDS
    log = (tmp_path / "run" / "log.txt").read_text()
    for seat in workers().seats:
        assert f"{seat}: {ROUNDS} rounds, " in log


def test_workers_tell_the_losses_of_single_clients(ray: Ray) -> None:
    taking = {"participation": fm.Participation(sampler=fm.samplers.power_of_choice(7))}
    ours, theirs = run(KINDS["fedavg"], ray, **taking), run(KINDS["fedavg"], "local", **taking)
    agree(ours, theirs)
    np.testing.assert_allclose(ours.state.losses, theirs.state.losses, rtol=1e-6)
    assert np.isfinite(ours.state.losses).any()
