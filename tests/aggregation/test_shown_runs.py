"""Whole runs on scanned digits: attacked and defended, and with messages of 8 bits both ways."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, o, population, same
from fedmime.engine.backends.local import backend as local

g = fm.aggregation
LOGISTIC = fm.models.logistic((8, 8, 1), 10)
SEEDS = (0, 1)
CLIENTS = 20


def _initial(seed: int) -> Any:
    return jax.tree.map(lambda v: v.astype(np.float32), LOGISTIC.init(jax.random.key(seed)))


# A fifth of the clients sends ten times the negative of its update. The attack-free run to compare with is that of the
# plain mean, all clients honest: a defended run has to make up for the loss of a fifth of the data, too.

ROUNDS = 40
ATTACK_SEEDS = tuple(itertools.islice((s for s in range(99) if g.attackers(CLIENTS, 0.2, s).sum() == 4), len(SEEDS)))
COMBINERS = {
    "median": g.median(),
    "trimmed_mean": g.trimmed_mean(0.2),
    "geometric_median": g.geometric_median(),
}


@functools.cache
def _accuracy(seed: int, combiner: str | None, attacked: bool) -> float:
    parts = [g.attack("sign_flip", 0.2, 10.0, seed=ATTACK_SEEDS[seed])] if attacked else []
    parts += [] if combiner is None else [COMBINERS[combiner]]
    clients = fm.data.digits(CLIENTS, alpha=100.0, seed=seed)
    run = fm.simulate(
        a.fedavg(0.5), LOGISTIC, clients, ROUNDS, CLIENTS, 10, seed=seed, weights="uniform", initial=_initial(seed),
        evaluate_every=ROUNDS, aggregation=g.chain(*parts), devices=1,
    )  # fmt: skip
    return 100 * float(run.history["test_accuracy"][-1])


def test_it_really_is_a_fifth() -> None:
    assert [int(g.attackers(CLIENTS, 0.2, seed).sum()) for seed in ATTACK_SEEDS] == [4, 4]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_mean_fails_under_attack(seed: int, fact) -> None:
    attacked = _accuracy(seed, None, attacked=True)
    fact("accuracy of the mean with a fifth of clients flipping signs, %", attacked)
    assert attacked < _accuracy(seed, None, attacked=False) - 50


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_robust_combiners_stay_within_three_points(seed: int, combiner: str, fact) -> None:
    """Fault 44, at twice the share of attackers."""
    honest, attacked = _accuracy(seed, None, attacked=False), _accuracy(seed, combiner, attacked=True)
    fact(f"points lost by {combiner} to a fifth of clients flipping signs", honest - attacked)
    assert honest > 88
    assert honest - attacked <= 3


def test_attackers_that_send_nan_are_refused_and_counted() -> None:
    """The others are not affected: the round is that of a population without the attackers."""
    sizes, seed = (5, 3, 8, 4, 6), 2
    bad = g.attackers(len(sizes), 0.3, seed)
    assert 0 < bad.sum() < len(sizes)
    clients = population(sizes)
    honest = fm.data.from_arrays({f"c{i}": clients.client_at(i) for i in np.flatnonzero(~bad)})
    initial = PROBLEM.init(jax.random.key(7))
    for algorithm in (a.fedavg(0.1), a.mime(o.momentum(), 0.1)):
        ours = fm.simulate(
            algorithm, PROBLEM, clients, 2, 5, None, initial=initial, aggregation=g.attack("nan", 0.3, seed=seed)
        )
        np.testing.assert_array_equal(ours.history["refused_not_finite"], bad.sum())
        np.testing.assert_array_equal(ours.history["refused"], bad.sum())
        assert not ours.history["abandoned"].any()
        theirs = fm.simulate(
            algorithm, PROBLEM, honest, 2, len(honest.sizes), None, initial=initial, evaluate_every=5,
            aggregation=g.clip(1e30),
        )  # fmt: skip
        jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, 1e-12, 1e-12), ours.params, theirs.params)


def test_replies_that_do_not_fit_are_refused_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = population((5, 3, 8, 4))
    before = fm.simulate(a.fedavg(0.1), PROBLEM, clients, 1, 4, aggregation=g.median())
    monkeypatch.setattr(local, "MESSAGE_BYTES", 4 * 15 * 8)  # four models fit, and no more
    assert same(fm.simulate(a.fedavg(0.1), PROBLEM, clients, 1, 4, aggregation=g.median()).params, before.params)
    monkeypatch.setattr(local, "MESSAGE_BYTES", 4 * 15 * 8 - 1)
    with pytest.raises(fm.ConfigError) as refusal:
        fm.simulate(a.fedavg(0.1), PROBLEM, clients, 1, 4, aggregation=g.median())
    words = "aggregation: Median keeps the messages of all 4 clients, 480 bytes; accepted are at most 479"
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
    fm.simulate(a.fedavg(0.1), PROBLEM, clients, 1, 4, aggregation=g.trimmed_mean(0))  # the mean keeps nothing


# Messages of 8 bits both ways.


@pytest.mark.parametrize("seed", SEEDS)
def test_eight_bits_both_ways_cost_less_than_half_a_point(seed: int, fact) -> None:
    clients, eight = fm.data.digits(50, alpha=0.5, seed=seed), g.chain(g.quantize(8), down=g.quantize(8))
    plain, ours = (
        fm.simulate(
            a.mime(o.momentum(), 0.3), LOGISTIC, clients, 40, 10, 10, seed=seed, initial=_initial(seed),
            evaluate_every=40, aggregation=aggregation, devices=1,
        ).history
        for aggregation in (None, eight)
    )  # fmt: skip
    lost = 100 * float(plain["test_accuracy"][-1] - ours["test_accuracy"][-1])
    fact("accuracy of Mime on digits without compression, %", 100 * float(plain["test_accuracy"][-1]))
    fact("accuracy of Mime on digits with 8 bits both ways, %", 100 * float(ours["test_accuracy"][-1]))
    assert plain["test_accuracy"][-1] > 0.85
    assert abs(lost) <= 0.5
    share = ours["bytes_total"][-1] / plain["bytes_total"][-1]
    fact("bytes of Mime on digits with 8 bits both ways, as a share", share)
    assert share <= 0.27
