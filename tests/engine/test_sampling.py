"""Who is drawn for a round, and which of their examples."""

import numpy as np

from engine.setting import a, o, population
from fedmime.engine.sampling import Schedule

SIZES = [4, 7, 1, 9, 5, 6, 0, 3]
CLIENTS = population(SIZES)
ETA = 0.1
ALL = sum(n > 0 for n in SIZES)


def _schedule(cohort_size: int = 4) -> Schedule:
    return Schedule(cohort_size, batch_size=4, epochs=1, steps=None, seed=0, weights="examples")


def test_clients_without_examples_are_never_drawn() -> None:
    drawn = [m.client for t in range(50) for m in _schedule().cohort(a.fedavg(ETA), CLIENTS, t).members]
    assert set(drawn) == {i for i, n in enumerate(SIZES) if n}
    assert _schedule().cohort(a.fedavg(ETA), CLIENTS, 0).population == ALL


def test_split_cohorts_are_disjoint_halves() -> None:
    for t in range(20):
        cohort = _schedule().cohort(a.mime(o.momentum(), ETA, split=True), CLIENTS, t)
        trainers, others = ({m.client for m in group} for group in (cohort.training, cohort.probing))
        assert len(trainers) == len(others) == 2
        assert not trainers & others


def test_centralized_draws_examples_independently() -> None:
    """As many as an average cohort has, each example equally likely, with repetition."""
    clients = population([1, 2, 5, 12])
    algorithm, schedule = a.centralized(o.sgd(), ETA), _schedule(cohort_size=2)
    everything = np.concatenate([clients.client_at(i)["x"][:, 0] for i in range(4)])
    drawn = []
    for t in range(300):
        cohort = schedule.cohort(algorithm, clients, t)
        assert [m.size for m in cohort.members] == [10]
        rows = cohort.source.batches(0).rows
        assert sorted(rows[:2].ravel().tolist() + rows[2, :2].tolist()) == list(range(10))
        drawn.append(cohort.source.examples(0)["x"][:, 0])
    assert any(len(set(one)) < len(one) for one in drawn)
    found = (np.concatenate(drawn)[:, None] == everything).sum(axis=0)
    expected = 300 * 10 / len(everything)
    assert found.sum() == 300 * 10
    assert float(((found - expected) ** 2 / expected).sum()) < 43.8  # the 0.1 % point with 19 degrees of freedom
