"""What a round must not depend on: the order of clients, the padding, the number of devices."""

import numpy as np

import fedmime as fm
from identities.setting import (
    Clients,
    Random,
    apart,
    clients,
    distance,
    exactly,
    identity,
    model,
    play,
    rate,
    ready,
    weights,
)

a, o = fm.algorithms, fm.optimizers


def _some(eta: float) -> list[fm.algorithms.Algorithm]:
    """One algorithm of each kind of message."""
    return [a.fedavg(eta), a.mime(o.momentum(0.8), eta), a.scaffold(eta), a.mime_mvr(eta, 0.7), a.fednova(eta)]


@identity
def test_weights_permute_with_clients(rng: Random) -> float:
    x, drawn, w, order = model(rng), clients(rng), weights(rng), rng.permutation(4)
    straight, permuted = drawn.cohort(weights=w), drawn.pick(order).cohort(weights=w[order], ids=list(order))
    return max(
        apart(play(alg, ready(alg, x), straight), play(alg, ready(alg, x), permuted)) for alg in _some(rate(rng))
    )


@identity
def test_order_of_clients_does_not_matter(rng: Random) -> float:
    """Over two rounds, weights by examples, what clients keep included."""
    x, rounds, orders = model(rng), [clients(rng) for _ in range(2)], [rng.permutation(4) for _ in range(2)]
    straight = [drawn.cohort() for drawn in rounds]
    permuted = [drawn.pick(order).cohort(ids=list(order)) for drawn, order in zip(rounds, orders, strict=True)]
    return max(
        apart(play(alg, ready(alg, x), *straight), play(alg, ready(alg, x), *permuted)) for alg in _some(rate(rng))
    )


@identity
def test_twice_the_weight_is_the_client_twice(rng: Random) -> float:
    x, drawn = model(rng), clients(rng)
    heavy, twice = (
        drawn.pick([0, 1, 2]).cohort(weights=[2, 1, 3]),
        drawn.pick([0, 0, 1, 2, 2, 2]).cohort(weights=[1] * 6),
    )
    eta = rate(rng)
    some = (a.fedavg(eta), a.mime(o.momentum(0.8), eta))
    return max(apart(play(alg, ready(alg, x), heavy), play(alg, ready(alg, x), twice)) for alg in some)


@identity
def test_scaling_all_weights_changes_nothing(rng: Random) -> float:
    x, drawn, w = model(rng), clients(rng), weights(rng)
    one, other = drawn.cohort(weights=w), drawn.cohort(weights=float(rng.uniform(1e-3, 1e3)) * w)
    return max(apart(play(alg, ready(alg, x), one), play(alg, ready(alg, x), other)) for alg in _some(rate(rng)))


def _soiled(drawn: Clients, rng: Random) -> Clients:
    """The same clients with rubbish where the mask is false."""
    batches = []
    for fields, mask in zip(drawn.batches, drawn.masks, strict=True):
        rubbish = rng.choice([np.nan, np.inf, -1e300, 0.0], fields["x"].shape)
        labels = np.where(mask, fields["y"], rng.integers(-9, 99, mask.shape))
        batches.append({"x": np.where(mask[..., None], fields["x"], rubbish), "y": labels})
    return Clients(batches, drawn.masks)


@exactly
def test_content_of_padding_does_not_matter(rng: Random) -> float:
    x, drawn = model(rng), clients(rng)
    soiled, full = _soiled(drawn, rng), [drawn.full(i) for i in range(4)]
    errors = []
    for alg in _some(rate(rng))[:2]:
        for options in ({}, {"full": full}):
            errors.append(
                apart(
                    play(alg, ready(alg, x), soiled.cohort(**options)),
                    play(alg, ready(alg, x), drawn.cohort(**options)),
                )
            )
    return max(errors)


@identity
def test_place_of_padding_does_not_matter(rng: Random) -> float:
    x, drawn = model(rng), clients(rng)
    order = rng.permutation(drawn.masks[0].shape[1])
    moved = Clients(
        [{name: column[:, order] for name, column in fields.items()} for fields in drawn.batches],
        [mask[:, order] for mask in drawn.masks],
    )
    return max(
        apart(play(alg, ready(alg, x), moved.cohort()), play(alg, ready(alg, x), drawn.cohort()))
        for alg in _some(rate(rng))
    )


@identity
def test_number_of_devices_does_not_matter(rng: Random) -> float:
    x, cohort = model(rng), clients(rng).cohort()
    errors = []
    for alg in _some(rate(rng))[:3]:
        one, two = (play(alg, ready(alg, x), cohort, cohort, devices=devices) for devices in (1, 2))
        errors += [apart(one, two), distance(one.server, two.server)]
    return max(errors)
