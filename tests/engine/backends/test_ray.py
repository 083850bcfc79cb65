"""The back end on Ray against the local one, and what it does when workers die, hang, or are not who they should be.

One Ray with two workers serves all tests of this file.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from engine.setting import KINDS, PROBLEM, close, population, same

pytest.importorskip("ray", reason="the extra fedmime[ray] is not installed")

from engine.backends.losses import FAILING, FAILING_LATER, NOISY, counting, tripled
from fedmime.algorithms.abstract import Anchor
from fedmime.engine.backends.ray import cluster, crew
from fedmime.engine.backends.ray.driver import RayBackend
from fedmime.engine.backends.ray.parts import deal, plain
from fedmime.engine.backends.specification import Ray
from fedmime.engine.round import work_of
from fedmime.engine.sampling import Schedule

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("ray")]
SIZES, ROUNDS = (5, 9, 14, 3, 7, 8, 2, 11), 3
SPECIFICATION = fm.backends.ray(workers=2, deadline=300)


@pytest.fixture(scope="module")
def ray() -> Iterator[Ray]:
    with SPECIFICATION as started:
        crew.take(started._options, "tests")
        yield started
        crew.release(started._options, "tests")
    assert not cluster.CLUSTER._users


def _workers() -> crew.Crew:
    return crew._open[SPECIFICATION._options].crew


def _all_ready() -> None:
    until = time.monotonic() + 200
    while not all(seat.ready for seat in _workers().seats):
        _workers()._admit(0.5)
        assert time.monotonic() < until


def _run(algorithm: Any, backend: Any, problem: Any = PROBLEM, **options: Any) -> Any:
    given = {"seed": 1, "evaluate_every": ROUNDS, "backend": backend, "rounds": ROUNDS} | options
    return fm.simulate(algorithm, problem, population(SIZES), cohort_size=6, batch_size=4, **given)


@functools.cache
def _expected(kind: str) -> Any:
    return _run(KINDS[kind], "local")


def _agree(ours: Any, theirs: Any) -> None:
    close(ours.state.server, theirs.state.server)
    assert ours.history.keys() == theirs.history.keys()
    for name in ours.history.keys() - {"seconds", "seconds_total"}:
        np.testing.assert_allclose(ours.history[name], theirs.history[name], 1e-10, err_msg=name)


@pytest.mark.parametrize(
    "kind",
    [
        "fedavg",
        "mime-adam",
        "scaffold",
        "feddyn",
        "mime_lite-split",
        "mime_mvr",
        "loc_mime",
        "server_only",
        "centralized",
    ],
)
def test_every_kind_of_algorithm(ray: Ray, kind: str) -> None:
    _agree(_run(KINDS[kind], ray), _expected(kind))


MIME = fm.algorithms.mime(fm.optimizers.momentum(0.9), 0.05)
AGGREGATIONS = {
    "quantize": fm.aggregation.quantize(bits=4),
    "clip and quantize": fm.aggregation.chain(fm.aggregation.clip(0.1), fm.aggregation.quantize(bits=8)),
    "median": fm.aggregation.median(),
    "error feedback": fm.aggregation.error_feedback(fm.aggregation.top_k(0.3)),
}


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_aggregation(ray: Ray, name: str) -> None:
    ours, theirs = (_run(MIME, backend, aggregation=AGGREGATIONS[name], drift=True) for backend in (ray, "local"))
    _agree(ours, theirs)
    if ours.state.memory is not None:
        clients = range(len(SIZES))
        close(ours.state.memory.read(clients), theirs.state.memory.read(clients))


def test_adaptive_clipping_takes_the_norms_of_the_state(ray: Ray) -> None:
    private = fm.aggregation.gaussian(0.5, quantile=0.5, noise_multiplier=0.1)
    ours, theirs = (_run(MIME, b, aggregation=private, weights="uniform") for b in (ray, "local"))
    _agree(ours, theirs)


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_random_losses(ray: Ray, weights: str) -> None:
    ours, theirs = (_run(MIME, backend, NOISY, weights=weights) for backend in (ray, "local"))
    _agree(ours, theirs)


def test_models_with_factors(ray: Ray) -> None:
    problem = fm.models.mlp((2, 2), 3, (5,))
    rng = np.random.default_rng(0)
    clients = {
        f"c{i}": {"x": rng.random((n, 2, 2)), "y": rng.integers(0, 3, n).astype(np.int32)} for i, n in enumerate(SIZES)
    }
    drawn = fm.data.from_arrays(clients)
    ours, theirs = (fm.simulate(MIME, problem, drawn, ROUNDS, 5, 4, backend=b) for b in (ray, "local"))
    jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, 1e-5, 1e-6), ours.state.server, theirs.state.server)


def test_a_recipe_of_the_users_own(ray: Ray) -> None:
    algorithm = tripled(0.1)
    _agree(_run(algorithm, ray), _run(algorithm, "local"))


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
    (ours, told), (theirs, expected) = ends
    close(ours.server, theirs.server)
    close(ours.memory.read(range(12)), theirs.memory.read(range(12)))
    assert told.refused == expected.refused == (2,)
    assert told.reasons == {"data": 1}


def test_a_cohort_without_members_is_abandoned(ray: Ray) -> None:
    never = fm.Participation(drop_out=1.0)
    run = _run(KINDS["fedavg"], ray, participation=never, gate=fm.Gate(patience=10))
    assert run.history["abandoned"].all()


def test_a_store_is_opened_by_its_path(ray: Ray, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    population(SIZES).save(tmp_path / "store")
    stored = fm.data.from_store(tmp_path / "store")
    options = {"seed": 1, "evaluate_every": ROUNDS}
    ours = fm.simulate(KINDS["mime-adam"], PROBLEM, stored, ROUNDS, 6, 4, backend=ray, **options)
    _agree(ours, _expected("mime-adam"))
    monkeypatch.setattr(stored, "origin", stored.origin._replace(arguments=(str(tmp_path / "elsewhere"),)))
    with pytest.raises(fm.DataError, match="elsewhere"):
        fm.simulate(KINDS["fedavg"], PROBLEM, stored, 1, 2, backend=ray)


def test_bad_clients_are_named_once(ray: Ray, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    clients = {f"c{i}": {"x": rng.normal(size=(3, 4)), "y": rng.integers(0, 3, 3)} for i in range(4)}
    clients["c2"]["x"][1, 1] = np.inf
    fm.data.from_arrays(clients).save(tmp_path / "store")
    stored = fm.data.from_store(tmp_path / "store")
    run = fm.simulate(KINDS["fedavg"], PROBLEM, stored, 3, 4, backend=ray)
    assert run.history["refused"].tolist() == [1, 1, 1]
    assert sum("'c2'" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("problem", [FAILING, FAILING_LATER], ids=["traced", "computed"])
def test_an_error_in_a_loss_ends_the_run(ray: Ray, problem: Any) -> None:
    seats = list(_workers().seats)
    with pytest.raises(Exception, match="no such number"):
        _run(KINDS["fedavg"], ray, problem)
    assert _workers().seats == seats  # nobody was blamed for it


def test_parts_share_the_work_evenly() -> None:
    schedule = Schedule(8, 4, 1, None, 0, "examples")
    cohort = schedule.cohort(MIME, population(SIZES), 0)
    work = work_of(MIME, Anchor(points=1), 0, cohort, jax.random.key(0))
    dealt = deal(work, 3)
    assert sorted(place for part in dealt for place in part) == list(range(8))
    loads = [sum(cohort.members[place].size for place in part) for part in dealt]
    assert max(loads) - min(loads) <= max(SIZES)


def test_weak_types_travel_as_numbers() -> None:
    sent = plain({"weak": jnp.asarray(2.0), "strong": jnp.ones(2)})
    assert type(sent["weak"]) is float
    assert type(sent["strong"]) is np.ndarray


def test_nothing_is_compiled_after_the_second_round(ray: Ray, tmp_path: Any) -> None:
    """Table sizes are reserved for a part's share; workers trace the loss only when they compile."""
    rng = np.random.default_rng(0)
    drawn = population(rng.integers(1, 40, 60).tolist())
    counts, file = [], tmp_path / "traced"
    problem = counting(file)
    fm.simulate(MIME, problem, drawn, 8, 10, 4, backend=ray, on_round=lambda *_: counts.append(file.stat().st_size))
    assert counts[1] == counts[-1] > 0


class _Killing:
    """Kills workers right after they were given the parts of certain calls, which are counted from the start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: dict[int, list[int]], when: str, by: int) -> None:
        self.calls, run = 0, crew.Crew.run

        def run_and_kill(workers: crew.Crew, calls: Any, placed: Any) -> Any:
            victims = [workers.seats[i].place.pid for i in at.get(self.calls, [])]
            self.calls += 1
            if when == "before":
                _kill(victims, by)
            sent = []

            def last(call: Any, actor: Any) -> Any:
                ref = call(actor)
                sent.append(ref)
                if when == "inside" and len(sent) == len(calls):
                    _kill(victims, by)
                return ref

            return run(workers, {n: functools.partial(last, call) for n, call in calls.items()}, placed)

        monkeypatch.setattr(crew.Crew, "run", run_and_kill)


def _kill(victims: list[int], by: int) -> None:
    for pid in victims:
        os.kill(pid, by)


@functools.cache
def _unbroken(kind: str) -> Any:
    _all_ready()
    return _run(KINDS[kind], SPECIFICATION)


def test_two_runs_are_bit_identical(ray: Ray) -> None:
    assert same(_unbroken("mime-adam").state, _run(KINDS["mime-adam"], ray).state)


@pytest.mark.parametrize(
    ("kind", "at", "when"),
    [  # calls of Mime + Adam: one that primes, then two in every round; of SCAFFOLD, one in every round
        ("mime-adam", {1: [0], 2: [1]}, "before"),  # before phase 1; then before phase 2, the only one left
        ("mime-adam", {4: [1]}, "before"),  # between phases
        ("mime-adam", {3: [0]}, "inside"),  # phase 1; if it was faster than its killer, phase 2 finds it dead
        ("scaffold", {1: [0, 1]}, "inside"),  # everybody
    ],
)
def test_dead_workers_change_nothing(
    ray: Ray, monkeypatch: pytest.MonkeyPatch, fact: Any, kind: str, at: dict[int, list[int]], when: str
) -> None:
    unbroken = _unbroken(kind)
    _all_ready()
    seats = list(_workers().seats)
    with monkeypatch.context() as patch:
        _Killing(patch, at, when, signal.SIGKILL)
        broken = _run(KINDS[kind], ray)
    assert same(broken.state, unbroken.state)
    assert _workers().seats != seats
    _all_ready()  # those that were killed have been replaced
    fact("rounds with workers killed by SIGKILL, same bits")


def test_a_hung_worker_is_replaced_at_the_deadline(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    unbroken = _unbroken("scaffold")
    _all_ready()
    seat = _workers().seats[0]
    with monkeypatch.context() as patch:
        patch.setattr(_workers(), "_options", _workers()._options._replace(deadline=6.0))
        _Killing(patch, {1: [0]}, "inside", signal.SIGSTOP)
        assert same(_run(KINDS["scaffold"], ray).state, unbroken.state)
    assert not seat.alive
    _all_ready()


@pytest.mark.parametrize(("name", "value"), [("jax", "0.0.1"), ("fedmime", "0.0.1"), ("float64", False)])
def test_other_versions_are_refused(ray: Ray, monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    monkeypatch.setattr(_workers(), "_facts", _workers()._facts._replace(**{name: value}))
    with pytest.raises(fm.ConfigError, match=f"has {name} .* the driver has {value!r}"):
        _run(KINDS["fedavg"], ray)


def test_what_was_started_is_private(ray: Ray) -> None:
    import ray as library
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    assert is_token_auth_enabled()
    assert library.get_runtime_context().gcs_address.startswith("127.0.0.1:")
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_no_cluster_without_a_token(ray: Ray, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    joining = fm.backends.ray(address="10.0.0.1:6379")
    with pytest.raises(fm.ConfigError, match=r"joining '10.0.0.1:6379' needs the cluster's token"):
        _run(KINDS["fedavg"], joining)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(fm.ConfigError, match="RAY_AUTH_MODE=token"):
        _run(KINDS["fedavg"], joining)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(fm.ConfigError, match=r"the Ray back end is an extra: pip install 'fedmime\[ray\]'"):
        _run(KINDS["fedavg"], "ray")


@pytest.mark.parametrize("options", [{"workers": 0}, {"cores_per_worker": 0}, {"deadline": 0.0}, {"address": ""}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(fm.ConfigError, match=f"ray: {next(iter(options))} must"):
        fm.backends.ray(**options)


def test_starting_a_back_end_starts_no_process() -> None:
    started = fm.backends.ray(workers=5).start(PROBLEM, PROBLEM.init(jax.random.key(0)))
    assert isinstance(started, RayBackend)
    assert started._crew is None
    started.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mime-adam", "scaffold"])
def test_ten_kills_at_random_times(ray: Ray, monkeypatch: pytest.MonkeyPatch, fact: Any, kind: str) -> None:
    """Forty rounds; in ten phases, drawn at random, a worker is killed within 30 ms, which is how long one takes."""
    unbroken = _run(KINDS[kind], ray, rounds=40)
    rng, run, calls, met = np.random.default_rng(7), crew.Crew.run, itertools.count(), []
    chosen = set(rng.choice(79 if kind == "mime-adam" else 40, 10, replace=False).tolist())

    def run_and_kill(workers: crew.Crew, parts: Any, placed: Any) -> Any:
        if next(calls) not in chosen:
            return run(workers, parts, placed)
        _all_ready()
        victim = workers.seats[rng.integers(2)]
        killer = threading.Timer(rng.uniform(0, 0.03), os.kill, (victim.place.pid, signal.SIGKILL))
        start = time.monotonic()
        killer.start()
        found = run(workers, parts, placed)
        met.append(not victim.alive)
        fact("seconds of a phase in which a worker is killed by SIGKILL", time.monotonic() - start)
        killer.join()
        return found

    monkeypatch.setattr(crew.Crew, "run", run_and_kill)
    broken = _run(KINDS[kind], ray, rounds=40)
    assert same(broken.state, unbroken.state)
    assert len(met) == 10
    assert any(met)
    fact("kills that met a worker at work", sum(met))
    monkeypatch.undo()
    _all_ready()
