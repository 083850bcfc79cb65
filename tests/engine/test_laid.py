"""A cohort that is run again keeps what was made of it, and the numbers are those of a new one."""

import dataclasses
import gc
import pickle
import weakref

import jax
import numpy as np
import pytest

import fedmime as fm
from fedmime.engine import laid

PROBLEM = fm.models.logistic(input_shape=(3,), classes=4)
ALGORITHMS = {
    "fedavg": fm.algorithms.fedavg(0.1),
    "mime": fm.algorithms.mime(fm.optimizers.momentum(), 0.1),
    "mime_mvr, a drawn step": fm.algorithms.mime_mvr(0.1, beta=0.9, output="random"),
    "mime_mvr, x^{t-1}": fm.algorithms.mime_mvr(0.1, beta=0.9, anchor="current"),
    "centralized": fm.algorithms.centralized(fm.optimizers.sgd(), 0.1),
}


def _cohort():
    random = np.random.default_rng(0)
    batches = [
        {"x": random.random((k, 2, 3), np.float32), "y": random.integers(0, 4, (k, 2), np.int32)} for k in (3, 1, 2)
    ]
    return fm.Cohort.from_batches(batches)


@pytest.fixture
def made(monkeypatch):
    """How often a cohort was laid out."""
    calls = []
    real = laid.lay_out
    monkeypatch.setattr(laid, "lay_out", lambda *given: calls.append(given) or real(*given))
    return calls


def _refuse(fields):
    raise fm.DataError("not these")


def _bits(state):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state.server)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_on_one_cohort_are_those_on_new_ones(name, made) -> None:
    algorithm, ends = ALGORITHMS[name], []
    for renew in (False, True):
        state, cohort = algorithm.init(PROBLEM.init(jax.random.key(0))), _cohort()
        for _ in range(4):
            state, _ = fm.run_round(algorithm, PROBLEM, state, _cohort() if renew else cohort, jax.random.key(1))
        ends.append(_bits(state))
    assert ends[0] == ends[1]
    assert len(made) == 1 + 4


def test_what_was_made_for_others_is_not_used(made) -> None:
    cohort, state = _cohort(), ALGORITHMS["fedavg"].init(PROBLEM.init(jax.random.key(0)))
    for problem, devices in ((PROBLEM, 1), (PROBLEM, 2), (dataclasses.replace(PROBLEM, chunk=2), 2), (PROBLEM, 2)):
        fm.run_round(ALGORITHMS["fedavg"], problem, state, cohort, devices=devices)
    assert len(made) == 4
    assert len(cohort.laid_out) == 1
    strict = dataclasses.replace(PROBLEM, check=_refuse)
    with pytest.raises(fm.DataError, match="not these"):
        fm.run_round(ALGORITHMS["fedavg"], strict, state, cohort)


def test_a_client_left_out_stays_out(made) -> None:
    batches = [{"x": np.full((1, 2, 3), v, np.float32), "y": np.zeros((1, 2), np.int32)} for v in (1.0, np.nan)]
    cohort, algorithm = fm.Cohort.from_batches(batches), ALGORITHMS["fedavg"]
    state = algorithm.init(PROBLEM.init(jax.random.key(0)))
    for _ in range(2):
        state, info = fm.run_round(algorithm, PROBLEM, state, cohort)
        assert info.refused == (1,)
        assert not info.abandoned
    assert len(made) == 1


def test_one_cohort_for_algorithms_that_lay_it_out_differently(made) -> None:
    cohort, ends = _cohort(), []
    for shared in (True, False):
        for name in ("fedavg", "centralized", "fedavg"):
            algorithm = ALGORITHMS[name]
            state = algorithm.init(PROBLEM.init(jax.random.key(0)))
            ends.append(_bits(fm.run_round(algorithm, PROBLEM, state, cohort if shared else _cohort())[0]))
    assert ends[:3] == ends[3:]
    assert len(made) == 6


def test_a_cohort_is_freed_with_its_last_name_and_can_be_pickled() -> None:
    cohort, algorithm = _cohort(), ALGORITHMS["fedavg"]
    state = algorithm.init(PROBLEM.init(jax.random.key(0)))
    first, _ = fm.run_round(algorithm, PROBLEM, state, cohort)
    assert cohort.laid_out
    again = pickle.loads(pickle.dumps(cohort))
    assert not again.laid_out
    assert _bits(fm.run_round(algorithm, PROBLEM, state, again)[0]) == _bits(first)
    gone = weakref.ref(cohort)
    gc.disable()
    try:
        del cohort
        assert gone() is None
    finally:
        gc.enable()


def test_a_large_cohort_is_not_kept(made, monkeypatch) -> None:
    monkeypatch.setattr(laid, "LARGEST", 10)
    cohort, algorithm = _cohort(), ALGORITHMS["fedavg"]
    state = algorithm.init(PROBLEM.init(jax.random.key(0)))
    for _ in range(2):
        fm.run_round(algorithm, PROBLEM, state, cohort)
    assert len(made) == 2
    assert not cohort.laid_out


def test_a_round_that_somebody_tried_to_trace_leaves_nothing_behind() -> None:
    cohort, algorithm = _cohort(), ALGORITHMS["fedavg"]
    state = algorithm.init(PROBLEM.init(jax.random.key(0)))
    with pytest.raises(Exception, match=r"(?i)trace"):
        jax.jit(lambda x: fm.run_round(algorithm, PROBLEM, algorithm.init(x), cohort)[0].server.x.tree)(
            fm.params(state)
        )
    assert not fm.run_round(algorithm, PROBLEM, state, cohort)[1].abandoned
