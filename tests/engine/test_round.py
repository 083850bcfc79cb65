"""Replies that are not finite: the client is left out, never the others; a round without any is abandoned."""

from collections.abc import Callable

import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, close, columns, model, o, population, roomy, same

IDS = [2, 5, 8]


def _cohort(ids: list[int], broken: tuple[int, ...] = ()) -> fm.Cohort:
    """The client of an id always has the same data, two steps of three examples; a broken one has a NaN."""
    batches = []
    for i in ids:
        data = columns(np.random.default_rng(i), 6)
        if i in broken:
            data["x"][4, 0] = np.nan
        batches.append({name: column.reshape(2, 3, *column.shape[1:]) for name, column in data.items()})
    return fm.Cohort.from_batches(batches, ids=ids, population=10)


def _round(algorithm, state: fm.State, cohort: fm.Cohort) -> tuple[fm.State, fm.Info]:
    return fm.run_round(algorithm, PROBLEM, state, cohort, backend=roomy())


KINDS = {
    "fedavg": a.fedavg(0.1),
    "fedavg-adam": a.fedavg(0.1, o.adam(), 0.01),
    "mime_lite-sgd": a.mime_lite(o.sgd(), 0.1),
    "mime": a.mime(o.sgd(), 0.1),
    "mime_lite-momentum": a.mime_lite(o.momentum(), 0.1),
    "server_only": a.server_only(o.sgd(), 0.1),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_client_that_is_not_finite_is_left_out(name: str) -> None:
    algorithm = KINDS[name]
    state = algorithm.init(model())
    end, info = _round(algorithm, state, _cohort(IDS, broken=(5,)))
    without, _ = _round(algorithm, state, _cohort([2, 8]))
    assert info.refused == (5,)
    assert not info.abandoned
    close(end.server, without.server)


@pytest.mark.parametrize("algorithm", [a.scaffold(0.1), a.feddyn(0.1, 0.3)], ids=["scaffold", "feddyn"])
def test_a_client_that_is_left_out_keeps_what_it_had(algorithm) -> None:
    state, _ = _round(algorithm, algorithm.init(model()), _cohort(IDS))
    end, info = _round(algorithm, state, _cohort(IDS, broken=(5,)))
    without, _ = _round(algorithm, state, _cohort([2, 8]))
    assert info.refused == (5,)
    assert np.isfinite(info.loss)
    close(end.server, without.server)
    close(end.memory.read(IDS), without.memory.read(IDS))


@pytest.mark.parametrize("algorithm", [*KINDS.values(), a.scaffold(0.1)], ids=[*KINDS, "scaffold"])
def test_a_round_without_finite_replies_is_abandoned(algorithm) -> None:
    state, _ = _round(algorithm, algorithm.init(model()), _cohort(IDS))
    end, info = _round(algorithm, state, _cohort(IDS, broken=tuple(IDS)))
    assert info.abandoned
    assert info.refused == tuple(IDS)
    assert info.update_norm == 0
    assert end.round == state.round + 1
    assert same(end.server, state.server)
    assert same(end.memory, state.memory)


def test_statistics_that_overflow_abandon_the_round() -> None:
    """The model would stay finite; v would not."""
    algorithm = a.server_only(o.rmsprop(), 0.1, prime_rounds=0)
    state = algorithm.init(model())
    cohort = fm.Cohort.from_batches([{"x": np.full((1, 2, 4), 1e200), "y": np.array([[0, 1]])}])
    end, info = fm.run_round(algorithm, PROBLEM, state, cohort)
    assert info.abandoned
    assert same(end.server, state.server)


def _fedprox(good: Callable[[int], bool]) -> fm.algorithms.Algorithm:
    """A step that overflows from the second one on, but in good rounds."""
    return a.fedprox(lambda t: 0.1 if good(t) else 1e200, lambda t: 0.0 if good(t) else 1e200)


def _simulate(algorithm, rounds: int, seen: list | None = None) -> fm.Run:
    tell = None if seen is None else lambda info, _: seen.append(info)
    return fm.simulate(algorithm, PROBLEM, population([3, 4, 4, 3]), rounds, 2, steps=3, on_round=tell)


def test_a_run_stops_after_three_abandoned_rounds() -> None:
    seen: list[fm.Info] = []
    with pytest.raises(fm.Diverged, match=r"3 rounds in a row.*round 3; lower eta") as error:
        _simulate(_fedprox(lambda t: t == 0), 9, seen)
    assert "\n" not in str(error.value)
    assert [info.abandoned for info in seen] == [False, True, True]


def test_a_run_recovers_from_fewer() -> None:
    run = _simulate(_fedprox(lambda t: t % 3 == 0), 7)
    assert run.history["abandoned"].tolist() == [t % 3 != 0 for t in range(7)]
    assert ((run.history["update_norm"] > 0) == ~run.history["abandoned"]).all()
    assert run.history["refused"].tolist() == [2 * (t % 3 != 0) for t in range(7)]


PRIMING = {"mime-adam": a.mime(o.adam(), 0.1), "mime_mvr": a.mime_mvr(0.1, 0.9, init_rounds=2)}


@pytest.mark.parametrize("name", PRIMING)
def test_a_gradient_only_round_that_was_abandoned_is_repeated(name: str) -> None:
    algorithm = PRIMING[name]
    cohorts = [_cohort(IDS), _cohort([1, 4]), _cohort([2, 8])]
    whole, broken = algorithm.init(model()), algorithm.init(model())
    for cohort in cohorts:
        whole, _ = _round(algorithm, whole, cohort)
    seen = []
    for cohort in (_cohort(IDS, broken=tuple(IDS)), *cohorts):
        broken, info = _round(algorithm, broken, cohort)
        seen.append((info.primed, info.abandoned))
    first = algorithm.gradient_rounds
    assert seen == [(True, True), *[(t < first, False) for t in range(len(cohorts))]]
    close(broken.server, whole.server)


def test_a_run_whose_first_round_is_abandoned_begins_with_the_next(tmp_path) -> None:
    """With seed 7 nobody reports in the first round."""
    given = (PRIMING["mime-adam"], PROBLEM, population([3, 4, 4, 3]), 5, 2)
    options = {"seed": 7, "participation": fm.Participation(drop_out=0.6, minimum=0.5)}
    whole = fm.simulate(*given, **options)
    assert whole.history["abandoned"][:2].tolist() == [True, False]
    assert whole.history["primed"].tolist() == [True, True, False, False, False]
    with pytest.raises(fm.Stopped):
        fm.simulate(*given, **options, run_dir=tmp_path, stop=lambda: 15)
    resumed = fm.simulate(*given, **options, run_dir=tmp_path)
    assert same(resumed.state.server, whole.state.server)
