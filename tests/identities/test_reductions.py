"""Where one algorithm is another: special numbers, one step, one client, identical clients."""

import fedmime as fm
from identities.setting import (
    Random,
    apart,
    bases,
    clients,
    full_batches,
    identical,
    identity,
    model,
    play,
    rate,
    seasoned,
    statistics,
    weights,
)

a, o = fm.algorithms, fm.optimizers


@identity
def test_mime_lite_with_sgd_is_fedavg(rng: Random) -> float:
    eta, eta_server, x = rate(rng), rate(rng), model(rng)
    rounds = [clients(rng).cohort(weights=weights(rng)) for _ in range(2)]
    return apart(
        play(a.mime_lite(o.sgd(), eta, eta_server), x, *rounds), play(a.fedavg(eta, None, eta_server), x, *rounds)
    )


def _one_step_is_server_only(factory, rng: Random) -> float:
    """One full-batch step from any statistics, for every base."""
    eta, x, cohort = rate(rng), model(rng), clients(rng, steps=1).cohort(weights=weights(rng))
    errors = []
    for base in bases(rng).values():
        s = statistics(base, rng)
        ours, central = (make(base, eta) for make in (factory, a.server_only))
        errors.append(apart(play(ours, seasoned(ours, x, s), cohort), play(central, seasoned(central, x, s), cohort)))
    return max(errors)


@identity
def test_mime_with_one_full_batch_step_is_server_only(rng: Random) -> float:
    return _one_step_is_server_only(a.mime, rng)


@identity
def test_mime_lite_with_one_full_batch_step_is_server_only(rng: Random) -> float:
    return _one_step_is_server_only(a.mime_lite, rng)


@identity
def test_priming_is_the_same_for_mime_and_server_only(rng: Random) -> float:
    base, eta, x = o.adam(0.8, 0.9, 1e-2), rate(rng), model(rng)
    rounds = [clients(rng, steps=1).cohort() for _ in range(3)]
    ends = [play(factory(base, eta, prime_rounds=1), x, *rounds) for factory in (a.server_only, a.mime, a.mime_lite)]
    return max(apart(end, ends[0]) for end in ends[1:])


@identity
def test_fedavg_with_one_full_batch_step_is_server_only(rng: Random) -> float:
    eta, x, rounds = rate(rng), model(rng), [clients(rng, steps=1).cohort() for _ in range(2)]
    return apart(play(a.fedavg(eta), x, *rounds), play(a.server_only(o.sgd(), eta), x, *rounds))


@identity
def test_one_client_with_full_batches_needs_no_correction(rng: Random) -> float:
    eta, x, rounds = rate(rng), model(rng), [full_batches(rng, number=1).cohort() for _ in range(2)]
    return apart(play(a.mime(o.sgd(), eta), x, *rounds), play(a.mime_lite(o.sgd(), eta), x, *rounds))


@identity
def test_identical_clients_with_full_batches_need_no_correction(rng: Random) -> float:
    eta, x, cohort = rate(rng), model(rng), identical(rng).cohort()
    errors = []
    for base in bases(rng).values():
        s = statistics(base, rng)
        ends = [play(alg, seasoned(alg, x, s), cohort) for alg in (f(base, eta) for f in (a.mime, a.mime_lite))]
        errors.append(apart(*ends))
    return max(errors)


@identity
def test_fedprox_without_its_spring_is_fedavg(rng: Random) -> float:
    eta, x, rounds = rate(rng), model(rng), [clients(rng).cohort() for _ in range(2)]
    return apart(play(a.fedprox(eta, mu=0.0), x, *rounds), play(a.fedavg(eta), x, *rounds))


@identity
def test_first_scaffold_round_is_fedavg(rng: Random) -> float:
    eta, x, cohort = rate(rng), model(rng), clients(rng).cohort(weights=weights(rng))
    return apart(play(a.scaffold(eta), x, cohort), play(a.fedavg(eta), x, cohort))


@identity
def test_adam_without_momentum_is_rmsprop(rng: Random) -> float:
    eta, x, rounds = rate(rng), model(rng), [clients(rng).cohort() for _ in range(3)]
    beta2, eps = float(rng.uniform(0.1, 0.95)), 1e-2
    adam, rmsprop = o.adam(0.0, beta2, eps), o.rmsprop(beta2, eps)
    one, other = (play(a.mime(base, eta), x, *rounds) for base in (adam, rmsprop))
    return apart(one, other)


@identity
def test_loc_mime_with_sgd_is_mime(rng: Random) -> float:
    eta, x, rounds = rate(rng), model(rng), [clients(rng).cohort() for _ in range(2)]
    return apart(play(a.mime(o.sgd(), eta, state="local"), x, *rounds), play(a.mime(o.sgd(), eta), x, *rounds))


@identity
def test_frozen_is_lookahead_for_sgd_and_momentum(rng: Random) -> float:
    eta, x, rounds = rate(rng), model(rng), [clients(rng).cohort() for _ in range(2)]
    errors = []
    for base in (o.sgd(), o.momentum(float(rng.uniform(0, 0.99)))):
        frozen, ahead = (play(a.mime(base, eta, apply=apply), x, *rounds) for apply in ("frozen", "lookahead"))
        errors.append(apart(frozen, ahead))
    return max(errors)


@identity
def test_split_cohorts_of_the_same_clients_are_no_split(rng: Random) -> float:
    base, eta, x, drawn = o.momentum(0.8), rate(rng), model(rng), clients(rng)
    both = drawn.cohort(full=[drawn.full(i) for i in range(len(drawn.batches))])
    one, two = (play(a.mime(base, eta, split=split), x, both, both) for split in (False, True))
    return apart(one, two)
