"""A round like the one before it on the same cohort is not made ready again, and what differs is noticed."""

import dataclasses
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from fedmime import native
from fedmime.engine import single

KEY = jax.random.key(1)
PLAIN = fm.models.logistic(input_shape=(6, 6, 1), classes=4)


def _noisy_loss(params, batch, key):
    kept = jax.random.bernoulli(key, 0.5, batch["x"].shape)
    return PLAIN.loss(params, batch | {"x": jnp.where(kept, batch["x"], 0)}, key)


NOISY = dataclasses.replace(PLAIN, loss=_noisy_loss, factors=None)
MOMENTUM = fm.optimizers.momentum()
CASES = {  # a problem, an algorithm, and in which of four rounds nothing is made ready
    "fedavg": (PLAIN, fm.algorithms.fedavg(0.1), [1, 2, 3]),
    "dropout": (NOISY, fm.algorithms.fedavg(0.1), [1, 2, 3]),
    "mime": (PLAIN, fm.algorithms.mime(MOMENTUM, 0.1), [1, 2, 3]),
    "primed": (PLAIN, fm.algorithms.mime(fm.optimizers.adam(), 0.1), [2, 3]),
    "clients that remember": (PLAIN, fm.algorithms.scaffold(0.1), [1, 2, 3]),
    "a drawn step": (PLAIN, fm.algorithms.mime_mvr(0.1, beta=0.9, output="random"), [2, 3]),
    "pooled": (PLAIN, fm.algorithms.centralized(MOMENTUM, 0.1), [1, 2, 3]),
    "a schedule": (PLAIN, fm.algorithms.fedavg(lambda t: 0.1 / (t + 1)), []),
}


def _cohort():
    random = np.random.default_rng(0)
    batches = [
        {"x": random.random((k, 2, 6, 6, 1), np.float32), "y": random.integers(0, 4, (k, 2), np.int32)}
        for k in (3, 1, 2)
    ]
    return fm.Cohort.from_batches(batches)


def _bits(state):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state.server)]


@pytest.fixture
def made(monkeypatch):
    """The numbers of the rounds that were made ready."""
    rounds = []
    real = single.assemble

    def assemble(*given, **more):
        rounds.append(given[3])
        return real(*given, **more)

    monkeypatch.setattr(single, "assemble", assemble)
    return rounds


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_those_of_rounds_that_were_made_ready(case, made) -> None:
    problem, algorithm, left_out = CASES[case]
    ends = []
    for renew in (False, True):
        state, cohort, infos = algorithm.init(problem.init(jax.random.key(0))), _cohort(), []
        for _ in range(4):
            state, info = fm.run_round(algorithm, problem, state, _cohort() if renew else cohort, KEY)
            infos.append(info)
        ends.append((_bits(state), [str(info) for info in infos]))
    assert ends[0] == ends[1]
    assert made == [t for t in range(4) if t not in left_out] + [0, 1, 2, 3]


def test_what_is_asked_differently_is_made_ready(made) -> None:
    algorithm, other = fm.algorithms.fedavg(0.1), fm.algorithms.fedavg(0.1)
    twin = dataclasses.replace(PLAIN)
    state, cohort = algorithm.init(PLAIN.init(jax.random.key(0))), _cohort()
    state, _ = fm.run_round(algorithm, PLAIN, state, cohort)
    state, _ = fm.run_round(algorithm, PLAIN, state, cohort)
    assert len(made) == 1
    for asked in (
        {"algorithm": other},
        {"problem": twin},
        {"key": KEY},
        {"devices": 1},
        {"drift": True},
        {"memory": fm.engine.RamMemory(())},
        {"layout": single.default_layout(PLAIN, None)},
    ):
        before = len(made)
        fm.run_round(**{"algorithm": algorithm, "problem": PLAIN, "state": state, "cohort": cohort} | asked)
        fm.run_round(algorithm, PLAIN, state, cohort)
        assert len(made) >= before + 1, asked


def test_a_state_of_another_kind_is_looked_at(made) -> None:
    algorithm, cohort = fm.algorithms.fedavg(0.1), _cohort()
    state = algorithm.init(PLAIN.init(jax.random.key(0)))
    for _ in range(2):
        state, _ = fm.run_round(algorithm, PLAIN, state, cohort)
    with pytest.raises(fm.ConfigError, match="state must come from"):
        fm.run_round(algorithm, PLAIN, fm.algorithms.scaffold(0.1).init(fm.params(state)), cohort)
    for _ in range(2):
        fm.run_round(algorithm, PLAIN, state, cohort)
    wrong = state._replace(server=jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), state.server))
    with pytest.raises(fm.ConfigError, match=r"problem\.init"):
        fm.run_round(algorithm, PLAIN, wrong, cohort)


def test_a_run_that_begins_anew_primes_again(made) -> None:
    problem, algorithm, _ = CASES["primed"]
    cohort, state = _cohort(), algorithm.init(PLAIN.init(jax.random.key(0)))
    for _ in range(3):
        state, _ = fm.run_round(algorithm, problem, state, cohort)
    anew, info = fm.run_round(algorithm, problem, state._replace(round=0), cohort)
    assert info.primed
    assert made == [0, 1, 0]
    np.testing.assert_array_equal(fm.params(anew)["dense0"]["w"], fm.params(state)["dense0"]["w"])


def test_settings_of_jax_are_noticed(made) -> None:
    problem, algorithm, _ = CASES["mime"]
    cohort, state = _cohort(), algorithm.init(PLAIN.init(jax.random.key(0)))
    for _ in range(2):
        state, _ = fm.run_round(algorithm, problem, state, cohort)
    assert made == [0]
    jax.config.update("jax_debug_nans", True)
    try:
        fm.run_round(algorithm, problem, state, cohort)
    finally:
        jax.config.update("jax_debug_nans", False)
    assert made == ([0, 2] if native.usable() else [0])


def test_a_key_that_can_be_written_over_is_read_every_time(made) -> None:
    problem, algorithm, _ = CASES["dropout"]
    key, cohort, state = np.zeros(2, np.uint32), _cohort(), algorithm.init(PLAIN.init(jax.random.key(0)))
    ends = []
    for number in (0, 1):
        key[1] = number
        ends.append(fm.run_round(algorithm, problem, state, cohort, key)[0])
    assert _bits(ends[0]) != _bits(ends[1])


def test_a_round_that_somebody_tried_to_trace_is_not_kept() -> None:
    problem, algorithm, _ = CASES["dropout"]
    cohort, state = _cohort(), algorithm.init(PLAIN.init(jax.random.key(0)))
    state, _ = fm.run_round(algorithm, problem, state, _cohort(), KEY)
    with pytest.raises(Exception, match=r"(?i)trace"):
        jax.jit(lambda: fm.params(fm.run_round(algorithm, problem, state, cohort, KEY)[0]))()
    for _ in range(2):
        state, info = fm.run_round(algorithm, problem, state, cohort, KEY)
        assert not info.abandoned


def test_a_cohort_that_keeps_a_round_is_freed_with_its_last_name() -> None:
    algorithm, cohort = fm.algorithms.fedavg(0.1), _cohort()
    state = algorithm.init(PLAIN.init(jax.random.key(0)))
    for _ in range(3):
        state, _ = fm.run_round(algorithm, PLAIN, state, cohort)
    assert cohort.last_round
    gone = weakref.ref(cohort)
    gc.disable()
    try:
        del cohort
        assert gone() is None
    finally:
        gc.enable()
