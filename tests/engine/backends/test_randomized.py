"""Random losses (dropout): whose random numbers a gradient takes, and that Mime's two gradients take the same."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from engine.setting import a, close, o, roomy, same
from fedmime.engine.cohort import Batches, given
from fedmime.vector import norm

DIM, ETA, STEPS = 5, 0.1, 4
X = {"x": np.arange(DIM, dtype=float)}


def _loss(params, batch, key):
    """A gradient that is random but the same everywhere: normal(key)."""
    return batch["z"] + jnp.vdot(jax.random.normal(key, (DIM,), jnp.float64), params["x"])


PROBLEM = fm.models.from_functions(lambda key: None, _loss)


def _cohort(ids, rows: int = 2, **options) -> fm.Cohort:
    batches = [{"z": np.full((STEPS, rows), float(i))} for i in ids]
    return fm.Cohort.from_batches(batches, ids=ids, population=10, **options)


def _moved(algorithm, cohort: fm.Cohort, seed: int = 0, round_number: int = 0, devices: int = 2) -> np.ndarray:
    """How far a round takes x."""
    state = algorithm.init(X)._replace(round=round_number)
    state, _ = fm.run_round(algorithm, PROBLEM, state, cohort, jax.random.key(seed), backend=roomy(devices))
    return np.asarray(fm.params(state)["x"]) - X["x"]


FEDAVG, SERVER = a.fedavg(ETA), a.server_only(o.sgd(), 1.0)  # the latter moves by minus the mean full gradient


PATHS = {
    "every batch once": (STEPS, {}),
    "two epochs": (2 * STEPS, {}),
    "gradients of others": (STEPS, {"full": [{"z": np.zeros(4)} for _ in range(3)]}),
}


@pytest.mark.parametrize("path", PATHS)
def test_both_gradients_of_a_step_share_their_random_numbers(path: str) -> None:
    """Where the loss is linear the correction cancels the noise of a step exactly: each client moves by -K eta c.

    Only one client's update counts and every client's gradient, so nothing else would make its noise vanish.
    """
    algorithm = a.mime(o.sgd(), ETA)
    _, info = fm.run_round(algorithm, PROBLEM, algorithm.init(X), _walk(path), backend=roomy())
    steps = PATHS[path][0]
    assert info.steps == 3 * steps
    assert info.gradient_norm > 1e-3
    assert info.update_norm == pytest.approx(steps * ETA * info.gradient_norm, rel=1e-12)


def _walk(path: str) -> fm.Cohort:
    """Three clients that take the steps of a path; the first alone counts for the model, all for the gradient."""
    steps, options = PATHS[path]
    rows = (np.arange(2 * steps).reshape(steps, 2) % (2 * STEPS)).astype(np.int32)
    counts = np.full(steps, 2, np.int32)
    drawn = _cohort([0, 1, 2], **options)
    entries = [
        (
            m._replace(steps=steps) if m.steps else m,
            drawn.source.examples(i),
            Batches(rows, counts) if m.steps else None,
        )
        for i, m in enumerate(drawn.members)
    ]
    weights = {"weights": np.array([1.0, 0, 0]), "gradient_weights": np.ones(3)}
    return dataclasses.replace(given(entries, 10), **weights, explicit=True)


@pytest.mark.parametrize("path", PATHS)
def test_both_full_gradients_of_mvr_share_their_random_numbers(path: str) -> None:
    """m = h(x) + beta (m - h(x_old)): where the loss is linear and m was zero, m is (1 - beta) h(x) exactly."""
    algorithm = a.mime_mvr(ETA, 0.75, init_rounds=0)
    state, info = fm.run_round(algorithm, PROBLEM, algorithm.init(X), _walk(path), backend=roomy())
    assert float(norm(state.server.m)) == pytest.approx(0.25 * info.gradient_norm, rel=1e-12)


@pytest.mark.parametrize("algorithm", [FEDAVG, SERVER], ids=["steps", "full gradient"])
def test_random_numbers_go_by_seed_round_and_client(algorithm) -> None:
    moves = [
        _moved(algorithm, _cohort([client]), seed, round_number)
        for seed in (0, 1)
        for round_number in (0, 1)
        for client in (0, 1, 7)
    ]
    assert len({tuple(move) for move in moves}) == len(moves)
    assert same(moves[0], _moved(algorithm, _cohort([0])))


def test_every_step_draws_anew() -> None:
    cohort = _cohort([0])
    one = fm.Cohort.from_batches([{"z": np.zeros((1, 2))}])
    assert np.abs(_moved(FEDAVG, cohort) - STEPS * _moved(FEDAVG, one)).max() > 1e-3


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("algorithm", [FEDAVG, SERVER], ids=["steps", "full gradient"])
def test_random_numbers_do_not_go_by_device_or_order(algorithm, devices: int) -> None:
    """A cohort moves by the mean of what its clients would move alone, in any order."""
    ids = [0, 1, 7, 4, 2]
    alone = np.mean([_moved(algorithm, _cohort([i]), devices=devices) for i in ids], axis=0)
    for order in (ids, ids[::-1]):
        close(_moved(algorithm, _cohort(order), devices=devices), alone)


def test_full_data_takes_the_clients_random_numbers() -> None:
    """Giving a client's examples as `full` too, as its mini-batches already show, changes nothing."""
    full = {"full": [{"z": np.full(STEPS * 2, 7.0)}]}
    close(_moved(SERVER, _cohort([7], **full)), _moved(SERVER, _cohort([7])))
