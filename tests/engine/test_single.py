"""One round on explicit data: the state after it, and what is told about it."""

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, close, columns, model, o, same
from fedmime.engine.single import run_round

RNG = np.random.default_rng(0)
CLIENTS = [{name: column.reshape(2, 3, *column.shape[1:]) for name, column in columns(RNG, 6).items()} for _ in "ab"]


def _round(algorithm, clients=CLIENTS, *, start: int = 0, **options) -> tuple[fm.State, fm.Info]:
    state = algorithm.init(model())._replace(round=start)
    return run_round(algorithm, PROBLEM, state, fm.Cohort.from_batches(clients), backend="reference", **options)


def test_a_round_is_counted_and_reported() -> None:
    state, info = _round(a.fedavg(0.1), start=4)
    assert (info.round, state.round) == (4, 5)
    assert (info.clients, info.steps, info.examples, info.refused) == (2, 4, 12, ())
    assert np.isnan(info.drift)
    assert not same(fm.params(state), model())


def test_drift_is_measured_where_it_is_asked_for() -> None:
    assert _round(a.fedavg(0.1), drift=True)[1].drift > 0


def test_the_callers_state_stays_as_it_was() -> None:
    algorithm = a.fedavg(0.1)
    state = algorithm.init(model())
    run_round(algorithm, PROBLEM, state, fm.Cohort.from_batches(CLIENTS), backend="reference")
    assert state.round == 0
    assert same(fm.params(state), model())


def test_a_key_of_zero_is_the_default() -> None:
    noisy = fm.models.from_functions(
        PROBLEM.init, lambda p, batch, key: PROBLEM.loss(p, batch, key) * jax.random.uniform(key)
    )
    algorithm, cohort = a.fedavg(0.1), fm.Cohort.from_batches(CLIENTS)
    ends = [
        fm.params(run_round(algorithm, noisy, algorithm.init(model()), cohort, key, backend="reference")[0])
        for key in (None, jax.random.key(0), jax.random.key(1))
    ]
    assert same(ends[0], ends[1])
    assert not same(ends[0], ends[2])


def test_pooled_training_leaves_bad_clients_out_and_says_so() -> None:
    bad = {"x": np.full_like(CLIENTS[0]["x"], np.nan), "y": CLIENTS[0]["y"]}
    algorithm = a.centralized(o.momentum(0.5), 0.1)
    end, info = _round(algorithm, [CLIENTS[0], bad, CLIENTS[1]])
    assert info.refused == (1,)
    close(fm.params(end), fm.params(_round(algorithm)[0]))


def test_arguments_are_checked_first() -> None:
    with pytest.raises(fm.ConfigError, match="run_round: backend must be one of 'local', 'reference'"):
        run_round(a.fedavg(0.1), PROBLEM, a.fedavg(0.1).init(model()), fm.Cohort.from_batches(CLIENTS), backend="gpu")
