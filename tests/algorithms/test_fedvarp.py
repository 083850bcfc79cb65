"""FedVARP where only some clients take part: its whole point, against NumPy; and rounds that are abandoned."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import fedmime as fm
from algorithms.test_transcription import PROBLEM, SHAPES, data
from algorithms.test_transcription import cohort as transcribed
from engine.setting import PROBLEM as CLASSIFY
from engine.setting import population, same
from reference import algorithms as ref
from reference import problems as ref_problems

ETA, N = 0.05, 7
SEEN = [[0, 2, 4], [2, 4, 6], [6, 0, 1], [2, 1, 5]]  # who is in which round: some come again, one never does


def test_sampled_clients_agree_with_numpy() -> None:
    """The mean over the population is that of all last movements, of those not in the cohort as well."""
    rounds, _, x = data()
    algorithm, grad = fm.algorithms.fedvarp(ETA), ref_problems.logistic().grad
    state, expected = algorithm.init({name: jnp.asarray(a) for name, a in x.items()}), ref.fedvarp_init(x)
    for clients, ids in zip(rounds, SEEN, strict=True):
        named = [ref.Client(c.batches, c.full, id=i) for c, i in zip(clients, ids, strict=True)]
        expected = ref.fedvarp(expected, named, grad, ETA, N)
        cohort = transcribed(clients, clients, np.float64, ids=ids, population=N)
        state, _ = fm.run_round(algorithm, PROBLEM, state, cohort)
    for name in SHAPES:
        np.testing.assert_allclose(fm.params(state)[name], expected.x[name], 1e-10, 1e-12)
    kept = dict(zip(range(N), state.memory.read(range(N)), strict=True))
    for i in range(N):
        for name in SHAPES:
            last = expected.y_i[i][name] if i in expected.y_i else np.zeros(SHAPES[name])
            np.testing.assert_allclose(-kept[i].tree[name], last, 1e-10, 1e-12)
    for name in SHAPES:  # the server's mean is that of what clients keep
        mean = sum(value.tree[name] for value in kept.values()) / N
        np.testing.assert_allclose(state.server.u.tree[name], mean, 1e-10, 1e-12)


def test_an_abandoned_round_changes_nothing() -> None:
    """Neither the mean nor what clients keep: the next round is as if there had been none."""
    clients, algorithm = population((4, 3, 5, 2)), fm.algorithms.fedvarp(lambda t: 1e30 if t == 1 else 0.1)
    options = {"cohort_size": 2, "batch_size": 3, "seed": 3, "gate": fm.Gate(patience=9)}
    one, two = (fm.simulate(algorithm, CLASSIFY, clients, rounds, **options) for rounds in (1, 2))
    assert two.history["abandoned"][-1] == 1
    assert same(one.state.server, two.state.server)
    assert same(one.state.memory.read(range(4)), two.state.memory.read(range(4)))
