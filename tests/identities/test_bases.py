"""What makes Mime's analysis work: U is linear in the gradient."""

import jax
import numpy as np
import optax

import fedmime as fm
from fedmime.vector import Vector
from identities.setting import (
    Random,
    apart,
    bases,
    clients,
    distance,
    grad,
    identity,
    model,
    play,
    statistics,
    update,
)

a, o = fm.algorithms, fm.optimizers


@identity
def test_u_commutes_with_averaging(rng: Random) -> float:
    """U(a g + (1-a) h, s) = a U(g, s) + (1-a) U(h, s), the constant momentum part included."""
    share, errors = float(rng.uniform(-1, 2)), []
    for base in bases(rng).values():
        s, g, h = statistics(base, rng), Vector(model(rng)), Vector(model(rng))
        mixed = share * update(base, g, s) + (1 - share) * update(base, h, s)
        errors.append(distance(update(base, share * g + (1 - share) * h, s), mixed))
    return max(errors)


@identity
def test_differences_of_u_are_linear(rng: Random) -> float:
    """U(g, s) - U(h, s) scales with g - h and depends on nothing else."""
    scale, errors = float(rng.uniform(-2, 2)), []
    for base in bases(rng).values():
        s, g, h, other = statistics(base, rng), *(Vector(model(rng)) for _ in range(3))
        here = update(base, g, s) - update(base, h, s)
        there = update(base, other + scale * (g - h), s) - update(base, other, s)
        errors.append(distance(there, scale * here))
    return max(errors)


@identity
def test_sgd_and_momentum_step_as_they_track(rng: Random) -> float:
    """For momentum U is what V makes of m, which is why it is the same frozen and with lookahead."""
    base = o.momentum(float(rng.uniform(0, 0.99)))
    s, g = statistics(base, rng), Vector(model(rng))
    errors = [distance(update(base, g, s), base.track(g, s)), distance(base.ahead(g, s, g), update(base, g, s))]
    return max(*errors, distance(o.sgd().ahead(g, (), g), g))


def _by_hand(transformation, x, rounds):
    """MimeLite with an optax transformation, one optax call after another."""
    s, call = transformation.init(x), CALLS[transformation]
    for drawn in rounds:
        sizes = [len(drawn.full(i)["y"]) for i in range(len(drawn.batches))]
        ys = []
        for i in range(len(sizes)):
            y = x
            for batch in drawn.steps(i):
                change, _ = call(grad(y, batch), s, y)  # from the server's state, which stays
                y = jax.tree.map(np.add, y, change)
            ys.append(y)
        share = [n / sum(sizes) for n in sizes]
        gradients = [grad(x, drawn.full(i)) for i in range(len(sizes))]
        _, s = call(_mean(share, gradients), s, x)
        x = _mean(share, ys)
    return x


def _mean(share, trees):
    return jax.tree.map(lambda *leaves: np.tensordot(share, np.stack(leaves), 1), *trees)


TRANSFORMATIONS = {
    "sgd": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(0.05, eps=1e-3),
    "adagrad": optax.adagrad(0.05),
}
DECAYED = optax.adamw(0.05, eps=1e-3, weight_decay=0.1)
CALLS = {transformation: jax.jit(transformation.update) for transformation in (*TRANSFORMATIONS.values(), DECAYED)}


def _equals_optax(transformation, rng: Random) -> float:
    x, rounds = model(rng), [clients(rng) for _ in range(2)]
    ours = play(a.mime_lite(o.from_optax(transformation), 1.0), x, *(drawn.cohort() for drawn in rounds))
    return distance(fm.params(ours), _by_hand(transformation, x, rounds))


@identity
def test_lookahead_with_optax_is_optax_step_by_step(rng: Random) -> float:
    return max(_equals_optax(transformation, rng) for transformation in TRANSFORMATIONS.values())


@identity
def test_optax_weight_decay_sees_the_point_reached(rng: Random) -> float:
    return _equals_optax(DECAYED, rng)


@identity
def test_our_momentum_is_optax_trace_scaled(rng: Random) -> float:
    """optax's m = g + beta m is ours divided by 1 - beta, so the same run needs eta (1 - beta)."""
    x, rounds = model(rng), [clients(rng).cohort() for _ in range(2)]
    theirs = play(a.mime_lite(o.from_optax(TRANSFORMATIONS["sgd"]), 1.0), x, *rounds)
    ours = play(a.mime_lite(o.momentum(0.9), 0.1 / (1 - 0.9)), x, *rounds)
    return apart(ours, theirs)
