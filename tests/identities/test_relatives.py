"""Where the algorithms beside Mime are FedAvg, FedOpt, FedProx, or an optimizer on the server."""

from __future__ import annotations

import math
from typing import Any

import fedmime as fm
from identities.setting import (
    Random,
    apart,
    clients,
    identity,
    model,
    play,
    rate,
    weights,
)

a, o = fm.algorithms, fm.optimizers


def _equal(rng: Random, one: Any, other: Any, rounds: int = 3, uniform: bool = False, **shape: Any) -> float:
    """How far two algorithms are apart after some rounds on the same random clients with random or equal weights."""
    x, drawn = model(rng), [clients(rng, **shape) for _ in range(rounds)]
    cohorts = [
        each.cohort(weights=[1.0] * len(each.batches) if uniform else weights(rng, len(each.batches))) for each in drawn
    ]
    return apart(play(one, x, *cohorts), play(other, x, *cohorts))


def _beta(rng: Random) -> float:
    return float(rng.uniform(0.1, 0.95))


@identity
def test_fedcm_with_all_weight_on_the_gradient_is_fedavg(rng: Random) -> float:
    eta = rate(rng)
    return _equal(rng, a.fedcm(eta, alpha=1.0), a.fedavg(eta))


@identity
def test_fedcm_with_one_step_is_momentum_on_the_server(rng: Random) -> float:
    eta, beta = rate(rng), _beta(rng)
    return _equal(rng, a.fedcm(eta, alpha=1 - beta), a.server_only(o.momentum(beta), eta), steps=1)


@identity
def test_ghbm_without_momentum_is_fedavg(rng: Random) -> float:
    eta = rate(rng)
    return _equal(rng, a.ghbm(eta, beta=0.0, tau=2), a.fedavg(eta))


@identity
def test_ghbm_with_one_step_and_one_round_is_heavy_ball_on_the_server(rng: Random) -> float:
    """x − η c + β (x − x_old); our momentum is an average, so the same steps need η / (1 − β)."""
    eta, beta = rate(rng), _beta(rng)
    return _equal(rng, a.ghbm(eta, beta, tau=1), a.server_only(o.momentum(beta), eta / (1 - beta)), steps=1)


@identity
def test_fedacg_without_momentum_is_fedavg(rng: Random) -> float:
    eta = rate(rng)
    return _equal(rng, a.fedacg(eta, beta=0.0), a.fedavg(eta))


@identity
def test_fedacg_without_momentum_but_its_penalty_is_fedprox(rng: Random) -> float:
    eta, mu = rate(rng), float(rng.uniform(0.1, 2))
    return _equal(rng, a.fedacg(eta, beta=0.0, mu=mu), a.fedprox(eta, mu))


@identity
def test_fednova_with_equal_steps_is_fedavg(rng: Random) -> float:
    """Whatever optimizer the clients run: the weights of their gradients are then the same everywhere."""
    eta, eta_server, inner = rate(rng), rate(rng), o.momentum(_beta(rng))
    one = _equal(rng, a.fednova(eta, eta_server=eta_server), a.fedavg(eta, eta_server=eta_server))
    return max(one, _equal(rng, a.fednova(eta, client=inner), a.fedavg(eta, client=inner)))


@identity
def test_fednova_with_equal_steps_and_a_penalty_is_fedprox(rng: Random) -> float:
    eta, mu = rate(rng), float(rng.uniform(0.1, 2))
    return _equal(rng, a.fednova(eta, mu), a.fedprox(eta, mu))


@identity
def test_fedexp_capped_at_one_is_fedavg(rng: Random) -> float:
    eta = rate(rng)
    return _equal(rng, a.fedexp(eta, eps=1e-9, cap=1.0), a.fedavg(eta))


@identity
def test_fedexp_of_clients_that_agree_is_fedavg(rng: Random) -> float:
    """One client agrees with itself: half of ‖Δ‖² over ‖Δ‖² is below the floor of 1, and nothing caps it."""
    eta = rate(rng)
    return _equal(rng, a.fedexp(eta, cap=math.inf), a.fedavg(eta), number=1)


@identity
def test_fedvarp_of_everybody_is_fedavg(rng: Random) -> float:
    """What clients keep cancels if all of them come, with equal weights; and in any first round."""
    eta = rate(rng)
    always = _equal(rng, a.fedvarp(eta), a.fedavg(eta), uniform=True)
    return max(always, _equal(rng, a.fedvarp(eta), a.fedavg(eta), rounds=1))


@identity
def test_clients_that_run_sgd_are_those_of_fedavg(rng: Random) -> float:
    eta, server, eta_server = rate(rng), o.momentum(_beta(rng)), rate(rng)
    return _equal(rng, a.fedavg(eta, server, eta_server, client=o.sgd()), a.fedavg(eta, server, eta_server))


@identity
def test_diloco_with_sgd_inside_is_fedopt(rng: Random) -> float:
    eta, beta, eta_server = rate(rng), _beta(rng), rate(rng)
    return _equal(rng, a.diloco(eta, beta, eta_server, o.sgd()), a.fedavg(eta, o.nesterov(beta), eta_server))


@identity
def test_one_client_trains_as_centralized_training_does(rng: Random) -> float:
    """In a first round, whole optimizers on both sides: both begin with fresh statistics."""
    eta, errors = rate(rng), []
    for base in (o.momentum(_beta(rng)), o.adamw(_beta(rng), _beta(rng), 1e-2, weight_decay=float(rng.uniform(0, 1)))):
        central = a.centralized(base, eta, apply="lookahead")
        errors.append(_equal(rng, a.fedavg(eta, client=base), central, rounds=1, number=1))
    return max(errors)


@identity
def test_adamw_without_decay_is_adam(rng: Random) -> float:
    eta, beta1, beta2 = rate(rng), _beta(rng), _beta(rng)
    adam, adamw = o.adam(beta1, beta2, 1e-2, bias_correction=True), o.adamw(beta1, beta2, 1e-2, weight_decay=0.0)
    return _equal(rng, a.fedavg(eta, client=adamw), a.fedavg(eta, client=adam), rounds=1)
